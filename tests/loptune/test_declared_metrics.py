import pytest

from loptune.declared_metrics import declaration, is_declared


def test_a_family_declares_every_name_that_continues_it():
    assert declaration("eval/accuracy").name == "eval/accuracy"
    assert declaration("eval/accuracy/5").name == "eval/accuracy/"
    assert declaration("tokens/gradient_fraction/0.00-0.25").unit == "fraction"


@pytest.mark.parametrize("name", ["eval/acuracy", "eval/accuracy/", "accuracy", "tokens/entropy"])
def test_an_undeclared_name_is_refused(name):
    with pytest.raises(KeyError, match=name):
        declaration(name)
    assert not is_declared(name)
