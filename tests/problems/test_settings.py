"""Configurations: what a field may be, and what a broken config.json is told."""

import dataclasses
import re

import pytest

from stackformer.problems.dcf import DCFConfig
from stackformer.problems.lm.config import LMConfig
from stackformer.problems.settings import explanations
from stackformer.training import UserError

SMALL = {"task": "RS", "steps": 5, "batch_size": 2, "learning_rate": 1e-3}


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("steps", "5", "a whole number of at least 1, but got '5'"),
        ("steps", True, "a whole number"),
        ("batch_size", 0, "a whole number of at least 1, but got 0"),
        ("learning_rate", float("nan"), "a finite number above 0, but got nan"),
        ("learning_rate", None, "a finite number above 0, but got None"),
        ("mode", "both", "one of mlm, alm, but got 'both'"),
        ("curriculum", 3, "a text"),
        ("model_config", [1], "names with values"),
        ("seeds", (), "different whole numbers"),
        ("seeds", (0, 2**32), "different whole numbers from 0 to 4294967295"),
        ("seeds", (-1,), "different whole numbers from 0"),
        ("seeds", 3, "different whole numbers"),
    ],
)
def test_a_wrong_value_is_told_what_it_should_be(field, value, expected):
    with pytest.raises(UserError, match=re.escape(f"`{field}` should be {expected}")):
        DCFConfig(**{**SMALL, field: value})


def test_json_there_and_back():
    config = DCFConfig(**SMALL, seeds=(3, 4))
    content = config.to_json()
    assert content["seeds"] == [3, 4] and content["experiment"] == "dcf"
    assert DCFConfig.from_json({**content, "environment": {}}) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"experiment": "lm"}, "of a run of experiments.dcf, but got .*'lm'"),
        ({"steps": None}, "`steps` should be a whole number"),
        ({"train_length": "40"}, "`train_length` should be a whole number"),
    ],
)
def test_a_broken_config_is_explained(change, message):
    content = {**DCFConfig(**SMALL).to_json(), **change}
    with pytest.raises(UserError, match=message):
        DCFConfig.from_json(content)


def test_missing_fields_are_named():
    content = {"experiment": "dcf", "task": "RS", "steps": 5}
    with pytest.raises(UserError, match="the fields batch_size, learning_rate, but"):
        DCFConfig.from_json(content)


@pytest.mark.parametrize("config", [DCFConfig, LMConfig])
def test_every_field_is_explained(config):
    names = {field.name for field in dataclasses.fields(config)}
    assert set(explanations(config)) == names
