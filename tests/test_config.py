"""Claims about options: who wins, and that nothing wrong is taken in silence."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from inferscale_server.config import ServerConfig, environ_of, load_config
from inferscale_server.errors import ConfigError


def toml(folder: Path, text: str) -> Path:
    file = folder / "inferscale.toml"
    file.write_text(text, "utf-8")
    return file


def test_without_anything_the_defaults_hold() -> None:
    assert load_config({}, {}) == ServerConfig()


def test_a_flag_wins_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    file = toml(tmp_path, "port = 1\nk = 1\nprimer_facts = 1")
    config = load_config({"port": 3}, {"INFERSCALE_PORT": "2", "INFERSCALE_K": "2"}, file)
    assert (config.port, config.k, config.primer_facts) == (3, 2, 1)


def test_a_server_beside_the_operators_is_configured_like_it_and_shares_no_facts_and_no_address(tmp_path: Path) -> None:
    text = 'recipe = "isolated"\ntail_tokens = 64\nfacts_url = "sqlite:////srv/facts"\nport = 9\nhost = "::1"'
    config = load_config({"model": "org/m"}, {"INFERSCALE_EMBEDDER_KEY": "secret"}, toml(tmp_path, text))
    told = environ_of(config)
    assert set(told) == {f"INFERSCALE_{name}" for name in ("RECIPE", "TAIL_TOKENS", "EMBEDDER_KEY")}
    assert load_config({}, told) == ServerConfig(recipe="isolated", tail_tokens=64, embedder_key=SecretStr("secret"))


def test_every_kind_of_setting_survives_the_way_through_the_environment() -> None:
    config = ServerConfig(kv_codec="int8", kv_codec_device=True, kv_device_gib=0.5, cache_dir=Path("/c"), k=7)
    assert load_config({}, environ_of(config)) == config


def test_a_flag_that_was_not_given_wins_over_nothing() -> None:
    assert load_config({"port": None}, {"INFERSCALE_PORT": "2"}).port == 2


def test_a_flag_of_false_wins_over_the_environment() -> None:
    assert load_config({"insecure": False}, {"INFERSCALE_INSECURE": "true"}).insecure is False


def test_the_environment_can_name_the_file(tmp_path: Path) -> None:
    assert load_config({}, {"INFERSCALE_CONFIG": str(toml(tmp_path, "port = 5"))}).port == 5


def test_a_file_given_by_hand_wins_over_the_one_in_the_environment(tmp_path: Path) -> None:
    assert load_config({}, {"INFERSCALE_CONFIG": str(tmp_path / "none")}, toml(tmp_path, "port = 5")).port == 5


def test_a_home_in_the_files_name_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toml(tmp_path, "port = 5")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_config({}, {"INFERSCALE_CONFIG": "~/inferscale.toml"}).port == 5


@pytest.mark.parametrize(
    "name", ["INFERSCALE_BASE_URL", "INFERSCALE_API_KEY", "INFERSCALE_LOG", "PATH", "inferscale_k"]
)
def test_variables_of_the_client_and_of_others_are_left_alone(name: str) -> None:
    assert load_config({}, {name: "anything"}) == ServerConfig()


@pytest.mark.parametrize(
    ("environ", "key", "value"),
    [
        ({"INFERSCALE_PROT": "8001"}, "INFERSCALE_PROT", "8001"),
        ({"INFERSCALE_PORT": "eighty"}, "port", "eighty"),
        ({"INFERSCALE_PORT": "0"}, "port", "0"),
        ({"INFERSCALE_PORT": "65536"}, "port", "65536"),
        ({"INFERSCALE_PORT": ""}, "port", "''"),
        ({"INFERSCALE_DATA_DIR": ""}, "data_dir", "''"),
        ({"INFERSCALE_INDEX": "annoy"}, "index", "annoy"),
        ({"INFERSCALE_RECIPE": "Primer"}, "recipe", "Primer"),
        ({"INFERSCALE_RECIPE": "session+primer"}, "recipe", "session+primer"),
        ({"INFERSCALE_WINDOW": "0"}, "window", "0"),
        ({"INFERSCALE_FACT_WRAPPER": "- "}, "fact_wrapper", "- "),
        ({"INFERSCALE_KV_DEVICE_GIB": "0"}, "kv_device_gib", "0"),
        ({"INFERSCALE_KV_DEVICE_GIB": "inf"}, "kv_device_gib", "inf"),
        ({"INFERSCALE_KV_DEVICE_GIB": "nan"}, "kv_device_gib", "nan"),
        ({"INFERSCALE_KV_DEVICE_GIB": "1e300"}, "kv_device_gib", "less than or equal to 1048576"),
        ({"INFERSCALE_KV_HOST_GIB": "1e300"}, "kv_host_gib", "less than or equal to 1048576"),
        ({"INFERSCALE_KV_DISK_GIB": "1e300"}, "kv_disk_gib", "less than or equal to 1048576"),
        ({"INFERSCALE_INSECURE": "perhaps"}, "insecure", "perhaps"),
        ({"INFERSCALE_FACTS_URL": "postgresql://h/db"}, "facts_url", "postgresql://h/db"),
        ({"INFERSCALE_FACTS_URL": "sqlite:///"}, "facts_url", "sqlite:///"),
    ],
)
def test_a_wrong_variable_is_an_error_of_one_line_with_key_and_value(
    environ: dict[str, str], key: str, value: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({}, environ)
    message = str(caught.value)
    assert key in message and value in message and "\n" not in message


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("prot = 8001", "prot", "8001"),
        ("port = true", "port", "True"),
        ("port = 80.5", "port", "80.5"),
        ("model = 5", "model", "5"),
        ("[kv]\ndevice_gib = 1", "kv", "device_gib"),
    ],
)
def test_a_wrong_line_in_the_file_is_an_error_with_key_and_value(
    tmp_path: Path, text: str, key: str, value: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({}, {}, toml(tmp_path, text))
    assert repr(key) in str(caught.value) and value in str(caught.value)


@pytest.mark.parametrize("content", [b"port = ", b"port = 1\nport = 2", b"\xff"])
def test_a_file_that_is_not_toml_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "broken.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"broken\.toml"):
        load_config({}, {}, file)


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml"):
        load_config({}, {}, tmp_path / "none.toml")


def test_an_unknown_flag_is_an_error_with_key_and_value() -> None:
    with pytest.raises(ConfigError, match=r"'colour'.*'red'"):
        load_config({"colour": "red"}, {})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_a_public_address_needs_consent(host: str) -> None:
    with pytest.raises(ConfigError, match="--insecure"):
        load_config({"host": host}, {})
    assert load_config({"host": host, "insecure": True}, {}).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_a_loopback_address_needs_none(host: str) -> None:
    assert load_config({"host": host}, {}).host == host


def test_an_empty_host_is_refused_even_with_consent() -> None:
    with pytest.raises(ConfigError, match="'host'"):
        load_config({"host": "", "insecure": True}, {})


def test_facts_lie_in_the_data_folder_unless_a_url_says_otherwise(tmp_path: Path) -> None:
    assert load_config({"data_dir": tmp_path}, {}).facts_path == tmp_path / "facts.sqlite3"
    elsewhere = load_config({"data_dir": tmp_path, "facts_url": "sqlite:////srv/f.db"}, {})
    assert elsewhere.facts_path == Path("/srv/f.db")


def test_home_is_expanded_in_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = load_config({"data_dir": "~/d", "cache_dir": "~/c", "facts_url": "sqlite:///~/f.db"}, {})
    assert (config.data_path, config.cache_path, config.facts_path) == (
        tmp_path / "d",
        tmp_path / "c",
        tmp_path / "f.db",
    )


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        setattr(ServerConfig(), "port", 1)  # noqa: B010


@pytest.mark.parametrize(
    ("flags", "environ", "text", "source"),
    [
        ({"port": "x"}, {}, "", "--port"),
        ({"model": ""}, {}, "", "MODEL"),
        ({"kv_device_gib": "0"}, {"INFERSCALE_KV_DEVICE_GIB": "1"}, "", "--kv-device-gib"),
        ({}, {"INFERSCALE_PORT": "x"}, "", "environment variable INFERSCALE_PORT"),
        ({}, {"INFERSCALE_PORT": "x"}, "port = 1", "environment variable INFERSCALE_PORT"),
        ({}, {}, 'port = "x"', r"inferscale.toml, key 'port'"),
        ({}, {"INFERSCALE_HOST": "0.0.0.0"}, "", "environment variable INFERSCALE_HOST"),
    ],
)
def test_an_error_says_where_the_value_was_read(
    tmp_path: Path, flags: dict[str, object], environ: dict[str, str], text: str, source: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(flags, environ, toml(tmp_path, text))
    assert source in str(caught.value).split(": ")[0]


SWITCHES = ("kv_codec_device", "insecure", "access_log", "verbose")


def test_only_int8_can_be_on_the_device_too() -> None:
    assert load_config({"kv_codec": "int8", "kv_codec_device": True}, {}).kv_codec_device
    for codec in ("none", "int4"):
        with pytest.raises(ConfigError, match=f"--kv-codec-device.*kv_codec is {codec}"):
            load_config({"kv_codec": codec, "kv_codec_device": True}, {})


@pytest.mark.parametrize("key", [name for name in ServerConfig.model_fields if name not in SWITCHES])
def test_true_is_no_value_for_anything_but_a_switch(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=f"'{key}': value True"):
        load_config({}, {}, toml(tmp_path, f"{key} = true"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_public_address_with_keys_needs_no_consent(host: str) -> None:
    assert load_config({"host": host, "api_keys": "keys"}, {}).host == host


def test_every_setting_is_documented_with_its_flag_variable_and_default() -> None:
    page = (Path(__file__).parents[1] / "docs" / "configuration.md").read_text("utf-8")
    lines = [line for line in page.splitlines() if line.startswith("| `")]
    rows = [tuple(cell.strip() for cell in line.split("|")[1:4]) for line in lines]
    assert rows == [
        (f"`{name}`", _flag_of(name), "–" if field.default is None else f"`{str(field.default).lower()}`")
        for name, field in ServerConfig.model_fields.items()
    ]


def _flag_of(name: str) -> str:
    return "`MODEL`" if name == "model" else f"`--{name.replace('_', '-')}`"


def test_the_embedders_key_comes_from_its_own_setting_or_openais_and_is_never_shown() -> None:
    own, openais = {"INFERSCALE_EMBEDDER_KEY": "sk-own"}, {"OPENAI_API_KEY": "sk-openai"}
    assert load_config({}, {}).embedder_secret is None
    assert load_config({}, openais).embedder_secret == "sk-openai"
    config = load_config({}, own | openais)
    assert config.embedder_secret == "sk-own" and "sk-" not in repr(config) + str(config) + config.model_dump_json()


def test_a_misspelt_key_is_refused_without_being_shown() -> None:
    with pytest.raises(ConfigError, match="INFERSCALE_EMBEDER_KEY") as caught:
        load_config({}, {"INFERSCALE_EMBEDER_KEY": "sk-own"})
    assert "sk-own" not in str(caught.value)
