"""vLLM's side of InferScale: the only package that imports vLLM.

connector.py  the KV connector: hooks of both halves, each guarded
scheduler_half.py  which tokens to claim, which slots to fill and to capture (pure Python)
worker_half.py  executes one step's commands on slab and paged cache
slab.py, capture.py  the arrays, the tap on the cache write
layers.py, tapped.py  which layers there are
"""
