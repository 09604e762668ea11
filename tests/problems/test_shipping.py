"""The models that come with the package answer as their files say."""

import pathlib

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

import stackformer
from stackformer.problems.dcf import shipped, shipping
from stackformer.training.errors import UserError


def test_the_first_ones_are_there():
    assert {"rs", "rs-alm", "ma", "se"} <= set(shipped())


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_model_holds_its_scores(name):
    path = shipping.folder() / f"{name}.safetensors"
    assert path.stat().st_size < 2 * 2**20
    facts = shipping.facts(name)
    assert {"config", "command", "commit", "seed", "steps", "scores"} <= set(facts)
    assert "--out" not in facts["command"] and facts["scores"]["score"] > 0.99
    trained = stackformer.load(name)
    sample = trained.task.sample(jax.random.key(7), 24, 64)
    pairs = trained.task.decode_sample(sample)
    for hard in (False, True):
        said = trained.predict([text for text, _ in pairs], hard=hard)
        assert np.mean([a == b for a, (_, b) in zip(said, pairs, strict=True)]) > 0.95


def test_arithmetic_by_hand():
    model = stackformer.load("ma")
    assert model.predict("((3*(1+4))-(2+(-3)))") == "1"
    assert model.predict(["(2+2)", "(4*4)"]) == ["4", "1"]


def test_unknown_names_are_one_line():
    with pytest.raises(UserError, match=r"`name` should be one of .*rs.*nothing"):
        stackformer.load("nothing")


def test_another_seed_is_refused():
    seed = shipping.facts("rs")["seed"]
    assert stackformer.load("rs", seed).predict("ab") == "ba"
    with pytest.raises(UserError, match=f"rs is of the seed {seed}, not 99"):
        stackformer.load("rs", 99)


def test_a_damaged_file_is_one_line(tmp_path, monkeypatch):
    whole = (shipping.folder() / "rs.safetensors").read_bytes()
    monkeypatch.setattr(shipping, "folder", lambda: tmp_path)
    for content in (b"", b"abc", whole[:1000], whole[:-4]):
        (tmp_path / "rs.safetensors").write_bytes(content)
        with pytest.raises(UserError, match=r"rs\.safetensors is damaged"):
            stackformer.load("rs")
    save_file({"x": np.ones(2)}, tmp_path / "rs.safetensors")
    with pytest.raises(UserError, match=r"rs\.safetensors is damaged"):
        stackformer.load("rs")


def test_a_name_that_is_a_folder_too_is_asked_about(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rs").mkdir()
    assert stackformer.load("rs").config.task == "RS"  # no run in it
    (tmp_path / "rs/config.json").write_text("{}")
    with pytest.raises(UserError, match=r"'rs' is both here; write \./rs"):
        stackformer.load("rs")
    with pytest.raises(UserError, match=r"config\.json"):
        stackformer.load(tmp_path / "rs")
    with pytest.raises(UserError, match=r"config\.json"):
        stackformer.load(pathlib.Path("rs"))
