"""What goes from one process to another: values come out as they went in, and nothing else does."""

import builtins
import collections
import contextlib
import datetime as dt
import decimal
import enum
import functools
import io
import os
import pathlib
import pickle
import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from on_demand import on_demand

module_settings = on_demand("fabric_train.state.module_settings", needs="torch")
plain_values = on_demand("fabric_train.state.plain_values", needs="torch")
rank_local = on_demand("fabric_train.state.rank_local", needs="torch")
replicated = on_demand("fabric_train.state.replicated", needs="torch")
torch = on_demand("torch")

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    | st.binary() | st.complex_numbers(allow_nan=False) | st.decimals(allow_nan=False)
    | st.datetimes() | st.timedeltas() | st.fractions()
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner)
        | st.tuples(inner, inner) | st.frozensets(st.text()) | st.sets(st.integers())
    ),
    max_leaves=20,
)  # fmt: skip


def round_trip(value):
    return plain_values.unpack(plain_values.pack(value))


@given(VALUES)
def test_plain_values_come_out_as_they_went_in(value):
    found = round_trip(value)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        collections.OrderedDict(a=1, b=[2]), collections.Counter("abba"), range(3, 9, 2),
        collections.deque([1, 2], maxlen=3), collections.defaultdict(list, a=[1]),
        dt.datetime(2026, 1, 1, tzinfo=dt.UTC), decimal.Decimal("1e-30"), slice(1, None, 2),
        bytearray(b"abc"), random.Random(4).getstate(), {("a", 1): {2.5: None}},
    ],
    ids=lambda one: type(one).__name__,
)  # fmt: skip
def test_containers_and_classes_of_the_list(value):
    found = round_trip(value)
    assert found == value
    assert type(found) is type(value)
    assert getattr(found, "maxlen", None) == getattr(value, "maxlen", None)


def tensors():
    generator = torch.Generator().manual_seed(3)
    wide = torch.randn(6, 4, generator=generator)
    return {
        "float32": wide, "view": wide.t()[1:, ::2], "one number": torch.tensor(3.5),
        "empty": torch.empty(0, 3), "bfloat16": wide.bfloat16(), "bool": wide > 0,
        "complex64": torch.complex(wide, wide), "conjugate": torch.complex(wide, wide).conj(),
        "negative": torch.complex(wide, wide).conj().imag, "int64": torch.arange(5),
        "uint8": torch.arange(5, dtype=torch.uint8), "float8": wide.to(torch.float8_e4m3fn),
        "gradient": wide.clone().requires_grad_(), "parameter": torch.nn.Parameter(wide),
        "frozen parameter": torch.nn.Parameter(wide, requires_grad=False),
    }  # fmt: skip


@pytest.mark.parametrize("name", [
    "float32", "view", "one number", "empty", "bfloat16", "bool", "complex64", "conjugate",
    "negative", "int64", "uint8", "float8", "gradient", "parameter", "frozen parameter",
])  # fmt: skip
def test_tensors_keep_bits_types_and_shapes(name):
    value = tensors()[name]
    found = round_trip({"x": [value]})["x"][0]
    assert (type(found), found.dtype, found.shape) == (type(value), value.dtype, value.shape)
    assert found.requires_grad == value.requires_grad
    if name == "float8":
        value, found = value.view(torch.uint8), found.view(torch.uint8)
    assert torch.equal(found.detach(), value.detach())
    with torch.no_grad():
        found.zero_()  # it is its own memory
    assert set(tensors()) == {
        "float32", "view", "one number", "empty", "bfloat16", "bool", "complex64", "conjugate",
        "negative", "int64", "uint8", "float8", "gradient", "parameter", "frozen parameter",
    }  # fmt: skip


def test_types_sizes_and_devices_of_torch():
    value = [torch.float16, torch.Size([2, 3]), torch.device("cpu")]
    found = round_trip(value)
    assert found == value
    assert isinstance(found[1], torch.Size)


def test_arrays_and_numbers_of_numpy():
    numpy = pytest.importorskip("numpy")
    values = [
        numpy.arange(12.0).reshape(3, 4)[:, ::2], numpy.array(5, "int16"), numpy.float32(2.5),
        numpy.int64(-3), numpy.array([], "complex128"), numpy.array(["2026-01-01"], "M8[s]"),
        numpy.bool_(True),
    ]  # fmt: skip
    for value, found in zip(values, round_trip(values), strict=True):
        assert type(found) is type(value)
        assert numpy.array_equal(found, value)
        assert numpy.asarray(found).dtype == numpy.asarray(value).dtype
    state = numpy.random.default_rng(5).bit_generator.state
    assert round_trip(state) == state
    for refused in (numpy.array([print]), numpy.zeros(2, "i4,f8")):
        with pytest.raises(plain_values.NotPlainError, match="an array of type"):
            plain_values.pack(refused)


class Color(enum.Enum):
    RED = 1


@dataclass
class Position:
    epoch: int
    taken: list


class Own:
    pass


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (len, "builtins.builtin_function_or_method"),
        (os.system, "builtin_function_or_method"),
        (lambda: 1, "builtins.function"),
        (functools.partial(print), "functools.partial"),
        (Own(), "test_plain_values.Own"),
        (Own, "test_plain_values.Own"),
        (Color.RED, "test_plain_values.Color"),
        (random.Random(1), "random.Random"),
        (io.StringIO(), "StringIO"),
        ([{"a": (Own(),)}], "test_plain_values.Own"),
    ],
)
def test_what_is_not_plain_is_refused_by_name_before_it_is_sent(value, name):
    with pytest.raises(plain_values.NotPlainError, match=f"a state has a .*{name}"):
        plain_values.pack(value)


def test_what_torch_packs_by_code_is_refused():
    sparse = torch.eye(3).to_sparse()
    for value in (sparse, torch.Generator(), torch.nn.Linear(2, 2), torch.relu):
        with pytest.raises(plain_values.NotPlainError):
            plain_values.pack(value)


def test_a_value_that_contains_itself_or_is_too_deep():
    endless = []
    endless.append(endless)
    found = round_trip(endless)
    assert found[0] is found
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(plain_values.NotPlainError, match="recursion"):
        plain_values.pack(deep)


def test_a_class_of_the_script_is_carried_once_it_is_named():
    for cls, value in ((Position, Position(3, [1, 2])), (Color, Color.RED)):
        with pytest.raises(plain_values.NotPlainError, match=r"fabric_train\.carry\(\)"):
            plain_values.pack(value)
        assert plain_values.carry(cls) is cls
        try:
            assert round_trip([value]) == [value]
            data = plain_values.pack(value)
        finally:
            del plain_values._carried[plain_values._key(cls)]
        with pytest.raises(
            plain_values.ForeignValueError, match=f"test_plain_values.{cls.__name__}"
        ):
            plain_values.unpack(data)
    with pytest.raises(TypeError, match="is no class"):
        plain_values.carry(print)
    slots = dataclass(slots=True)(Position)
    for cls in (collections.Counter, dict, pathlib.Path, slots, torch.Tensor):
        with pytest.raises(TypeError, match="whose instances are their attributes"):
            plain_values.carry(cls)


class Runs:
    def __init__(self, function, *arguments):
        self.called = function, arguments

    def __reduce__(self):
        return self.called


def hostile():
    """What a stranger sends in place of a state."""
    nested = io.BytesIO()
    torch.save(Runs(os.system, "true"), nested)
    return [
        Runs(os.system, "true"),
        Runs(eval, "1"),
        Runs(getattr, "", "join"),
        Runs(__import__, "os"),
        Runs(functools.partial, os.system),
        Runs(torch.load, "x"),
        Runs(torch.storage._load_from_bytes, nested.getvalue()),
        Runs(torch.hub.load, "x", "y"),
        Runs(plain_values.dtype_of, "load"),
        Runs(plain_values._member, "builtins.dict", "a"),
        Runs(plain_values._instance, "test_plain_values.Own", {}),
        Runs(plain_values._instance, "builtins.dict", {"keys": 1}),
        Own(),
        {"a": [Runs(builtins.open, "x", "w")]},
    ]


def test_names_of_others_are_not_taken():
    for value in hostile():
        data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        with pytest.raises(plain_values.ForeignValueError):
            plain_values.unpack(data)
        if not isinstance(value, Own):
            older = pickle.dumps(value, protocol=0)
            with pytest.raises(plain_values.ForeignValueError):
                plain_values.unpack(older)


def name(module, attribute):
    """Opcodes of pickle that push ``module.attribute``."""
    pushed = b"".join(b"\x8c" + bytes([len(one)]) + one.encode() for one in (module, attribute))
    return pushed + b"\x93"


STATES = "fabric_train.state"


@pytest.mark.parametrize(
    "target",
    [(f"{STATES}.replicated", "Manifest"), (f"{STATES}.plain_values", "dtype_of"),
     (f"{STATES}.plain_values", "_tensor"), ("builtins", "dict"), ("datetime", "datetime"),
     ("collections", "OrderedDict"), ("torch", "Size"), ("decimal", "Decimal")],
)  # fmt: skip
@pytest.mark.parametrize("by_slots", [True, False])
def test_no_class_or_function_of_the_receiver_is_changed(target, by_slots):
    """The opcode BUILD gives whatever was pushed attributes."""
    state = b"}\x8c\x08polluted" + name("builtins", "list") + b"s"
    state = b"N" + state + b"\x86" if by_slots else state
    with pytest.raises(plain_values.ForeignValueError):
        plain_values.unpack(b"\x80\x05" + name(*target) + state + b"b.")
    assert not hasattr(replicated.Manifest, "polluted")
    for function in plain_values._MAKERS.values():
        assert not hasattr(function, "polluted")
        assert not vars(function)


def test_no_class_of_the_list_takes_attributes():
    for cls in plain_values._CLASSES:
        with pytest.raises(TypeError):
            cls.polluted = 1


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda tail: b"\x80\x05" + tail))
def test_any_bytes_are_a_value_or_an_error(data):
    with contextlib.suppress(plain_values.ForeignValueError):
        plain_values.unpack(data)


@given(st.data())
def test_bytes_that_were_changed_run_nothing(data):
    packed = bytearray(plain_values.pack({"a": collections.Counter("ab"), "t": torch.arange(3)}))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(packed) - 1))
        packed[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(plain_values.ForeignValueError):
        plain_values.unpack(bytes(packed))


def test_more_than_is_taken_is_refused_before_it_is_read(monkeypatch):
    monkeypatch.setattr(plain_values, "MOST_BYTES", 10)
    with pytest.raises(plain_values.ForeignValueError, match="100 bytes, more than 10"):
        plain_values.unpack(bytes(100))


def test_a_rank_local_state_of_a_stranger_runs_nothing():
    local = rank_local.LocalStates({})
    for body in (pickle.dumps(Runs(os.system, "true")), plain_values.pack({"buffers": {}}),
                 plain_values.pack([1]), b""):  # fmt: skip
        with pytest.raises(plain_values.ForeignValueError):
            local.decode(body)


def test_that_an_attribute_is_absent_is_carried():
    absent = module_settings.Absent.ABSENT
    assert round_trip({"net.scale": absent})["net.scale"] is absent
