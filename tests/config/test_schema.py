"""Checks of every field of both schemas, derived from the field's definition."""

import json

import pytest
import yaml
from ml_collections import ConfigDict

from bert_jax.base.errors import UserError
from bert_jax.config import default_config, finetuning, pretraining
from bert_jax.config.common import COMMON
from bert_jax.config.schema import Field, build, check, differences, flatten, to_dict

SECTIONS = {
    "pretraining": pretraining.PRETRAINING,
    "stage": pretraining.STAGE,
    "finetuning": finetuning.FINETUNING,
    **finetuning.TASK_SECTIONS,
}
# A field of COMMON is tested once.
FIELDS = {
    (name, path): field
    for name, section in SECTIONS.items()
    for path, field in flatten(section)
    if not (name == "finetuning" and dict(flatten(COMMON)).get(path) is field)
}


def wrong_values(field):
    """Yields values out of range, with the rule that the message must contain."""
    if field.choices:
        yield "nonsense", "one of "
    # -2 is no value that is allowed outside the range.
    steps = {"above": 0, "below": 0, "at_least": -2, "at_most": 1}
    for name, step in steps.items():
        if (limit := getattr(field, name)) is not None:
            number = type(as_tuple(field.default)[0])(limit)
            yield number + step, f"{name.replace('_', ' ')} {limit}"
    if any(isinstance(x, float) for x in as_tuple(field.default)):
        yield float("nan"), "a number"
        yield float("inf"), "a number"


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("name", SECTIONS)
def test_a_value_out_of_range_is_refused_with_its_key_and_the_rule(name):
    for (section, path), field in FIELDS.items():
        if section != name or field.elements is not None:
            continue
        for value, rule in wrong_values(field):
            config = build(SECTIONS[name], {})
            is_tuple = isinstance(field.default, tuple)
            with config.ignore_type():
                config.update_from_flattened_dict({path: (value,) if is_tuple else value})
            with pytest.raises(UserError) as error:
                check(config, SECTIONS[name])
            message = str(error.value)
            assert message.startswith(f"config.{path} is ") and str(value) in message, message
            assert rule in message and "\n" not in message, message


@pytest.mark.parametrize("name", SECTIONS)
def test_a_field_has_a_comment_and_a_type(name):
    for (section, path), field in FIELDS.items():
        if section != name:
            continue
        assert len(field.comment) > 10 and field.comment.endswith("."), path
        for value in (None, True, "text", 1, 1.5, ("text",)):
            types = {type(value)} | ({float} if type(value) is int else set())
            if type(field.default) not in types:
                with pytest.raises(UserError, match=f"^config.{path} is .*; it must be "):
                    field.check(f"config.{path}", value)


@pytest.mark.parametrize("value", [("a",), (16.5,), (True,), 16])
def test_the_elements_of_a_tuple_have_a_type(value):
    with pytest.raises(UserError, match="it must be a tuple, each value a whole number"):
        Field((16, 32), "Sizes.").check("config.sizes", value)


SECTION = {
    "steps": Field(1, "Steps.", above=0),
    "model": {"hidden_size": Field(8, "Width."), "rate": Field(1.0, "Rate.")},
    "stages": Field(({},), "Stages.", elements={"length": Field(5, "Length.", at_least=3)}),
}


def test_build_takes_values_over_defaults_and_lists_for_tuples():
    config = build(SECTION, {"model": {"rate": 2}, "stages": [{"length": 4}, {}]})
    assert to_dict(config) == {
        "steps": 1,
        "model": {"hidden_size": 8, "rate": 2.0},
        "stages": [{"length": 4}, {"length": 5}],
    }
    assert isinstance(config.stages, tuple) and isinstance(config.model.rate, float)
    config.stages[0].length = 7
    assert build(SECTION, {}).stages[0].length == 5
    check(config, SECTION)


def test_a_single_text_for_a_tuple():
    config = build({"input": Field(("a",), "Inputs."), "name": Field("a", "A name.")}, {})
    config.input = config.name = "b"
    assert (config.input, config.name) == (("b",), "b")


def test_a_section_can_be_replaced():
    config = build(SECTION, {})
    config.model = ConfigDict({"hidden_size": 9, "rate": 2.0})
    assert config.model.hidden_size == 9
    check(config, SECTION)


@pytest.mark.parametrize(
    "values, words",
    [
        ({"model": {"hiden_size": 1}}, "config.model.hiden_size .* config.model.hidden_size?"),
        ({"model": {"hidden_size": "wide"}}, "config.model.hidden_size is 'wide'; .*whole number"),
        ({"stages": [{"lenght": 1}]}, r"config.stages\[0\].lenght .* config.stages\[0\].length?"),
        ({"stages": [3]}, "config.stages is .3,.; it must be a tuple, each value a section"),
    ],
)
def test_build_refuses_unknown_keys_and_wrong_types(values, words):
    with pytest.raises(UserError, match=words):
        build(SECTION, values)


def test_check_names_unknown_and_nested_keys():
    config = build(SECTION, {})
    config.stages[0].length = 2
    with pytest.raises(UserError, match=r"^config.stages\[0\].length is 2; it must be at least 3$"):
        check(config, SECTION)
    config = build(SECTION, {})
    config.modl = build(SECTION["model"], {})
    with pytest.raises(UserError, match="config.modl.hidden_size is not a known key; did you mean"):
        check(config, SECTION)


def test_differences_name_the_keys():
    old = to_dict(build(SECTION, {}))
    new = json.loads(json.dumps(old))
    assert differences(old, new) == {}
    new["model"]["hidden_size"] = 1
    del new["steps"]
    new["extra"] = {"key": 2}
    assert differences(old, new) == {
        "extra.key": (None, 2),
        "model.hidden_size": (8, 1),
        "steps": (1, None),
    }


def test_a_config_prints_as_yaml():
    config = default_config()
    assert yaml.safe_load(str(config)) == to_dict(config)
    assert "!!" not in str(config.train)
