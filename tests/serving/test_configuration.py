from __future__ import annotations

from dataclasses import fields

import pytest

from serving.configuration import PREFIX, READ_KEYS, WRITE_KEYS, Configuration
from serving.keys import Keys
from zoo.errors import UsageError


def test_values_come_from_the_environment():
    found = Configuration.of({"ZOO_SERVE_RATE": "2.5", "ZOO_SERVE_MAX_K": "50", "PATH": "/bin"})
    assert (found.rate, found.max_k, found.concurrency) == (2.5, 50, Configuration().concurrency)
    assert Configuration.of({}) == Configuration()


@pytest.mark.parametrize("text", ["", "ten", "-1", "nan", "inf", "1.5", "0"])
def test_a_value_that_is_none_is_refused_by_name(text):
    with pytest.raises(UsageError, match="ZOO_SERVE_MAX_K"):
        Configuration.of({"ZOO_SERVE_MAX_K": text})


def test_a_misspelt_variable_is_not_passed_over():
    with pytest.raises(UsageError, match="ZOO_SERVE_MAX_PIXELS"):
        Configuration.of({"ZOO_SERVE_MAX_PIXEL": "5"})


def test_variables_of_keys_and_hosts_are_known():
    environment = {READ_KEYS: "r" * 20, WRITE_KEYS: "w" * 20, "ZOO_SERVE_HOSTS": "a, b"}
    assert Configuration.of(environment) == Configuration()
    assert Keys.of(environment).may_write("w" * 20)


def test_every_setting_says_what_it_is():
    for one in fields(Configuration):
        assert one.metadata["help"]
        assert one.default >= one.metadata["low"], PREFIX + one.name.upper()
