"""Measurements that a release is judged by: each loads a conversation into a server and asks through the SDK."""
