"""One question to each of several brokers that have one address."""

from protocols.remoting.repeats import QUESTIONS_MAX, REPEATS_S, Repeats


def test_as_often_as_there_are_brokers() -> None:
    repeats = Repeats()
    asked = [repeats.is_repeated({"key": "k"}, 3, now) for now in (0.0, 0.1, 0.2, 0.3, 0.4)]
    assert asked == [False, True, True, False, True]


def test_one_broker_is_asked_as_often_as_one_likes() -> None:
    repeats = Repeats()
    assert not any(repeats.is_repeated({"key": "k"}, 1, 0.0) for _ in range(3))


def test_another_question_or_a_later_one_is_new() -> None:
    repeats = Repeats()
    asked = [({"key": "k"}, 0.0), ({"key": "x"}, 0.0), ({"key": "k"}, REPEATS_S)]
    assert not any(repeats.is_repeated(fields, 2, now) for fields, now in asked)


def test_what_is_remembered_is_bounded() -> None:
    repeats = Repeats()
    for index in range(QUESTIONS_MAX + 1):
        repeats.is_repeated({"key": str(index)}, 2, 0.0)
    assert not repeats.is_repeated({"key": "0"}, 2, 0.0)
    assert repeats.is_repeated({"key": str(QUESTIONS_MAX)}, 2, 0.0)
