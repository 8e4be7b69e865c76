"""Short vectors as values inside compiled functions.

numba guesses how to vectorise a plain loop. The hot kernels state it instead: sixteen columns or
eight states in registers. ``load8(array, (i, j))`` reads eight neighbours, ``fma(a, b, c)`` is
a * b + c on all lanes, ``total(v)`` adds the lanes. The compiler maps them to the machine's width.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from operator import truediv
from typing import Any

import numba.extending
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import register_default
from numba.core.datamodel.models import PrimitiveModel

# Annotated, so that typed code may call the functions it makes.
intrinsic: Callable[[Callable[..., Any]], Any] = numba.extending.intrinsic

_LLVM_FLOAT = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}


class Lanes(types.Type):  # type: ignore[misc]
    """The type of `width` numbers side by side."""

    def __init__(self, dtype: types.Float, width: int) -> None:
        self.dtype = dtype
        self.width = width
        super().__init__(name=f"Lanes({dtype}, {width})")

    @property
    def key(self) -> tuple[types.Float, int]:
        """Identity of the type."""
        return self.dtype, self.width


@register_default(Lanes)
class _LanesModel(PrimitiveModel):  # type: ignore[misc]
    def __init__(self, data_model_manager: Any, frontend_type: Lanes) -> None:
        super().__init__(data_model_manager, frontend_type, _llvm(frontend_type))


def _llvm(lanes: Lanes) -> ir.VectorType:
    return ir.VectorType(_LLVM_FLOAT[lanes.dtype], lanes.width)


def _broadcast(builder: Any, scalar: Any, vector: ir.VectorType) -> Any:
    zero = ir.Constant(ir.IntType(32), 0)
    single = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, zero)
    mask = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(single, ir.Constant(vector, ir.Undefined), mask)


def _call(builder: Any, name: str, *arguments: Any) -> Any:
    """Call an LLVM intrinsic whose result has the type of its arguments."""
    kind = arguments[-1].type
    letters = "f32" if isinstance(kind.element, ir.FloatType) else "f64"
    function_type = ir.FunctionType(kind, [argument.type for argument in arguments])
    full_name = f"llvm.{name}.v{kind.count}{letters}"
    function = cgutils.get_or_insert_function(builder.module, function_type, full_name)
    return builder.call(function, arguments)


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any, vector: Any) -> Any:
    """Pointer to the cell of arguments (array, index), as a pointer to a vector."""
    array_type, index_type = signature.args[:2]
    proxy = context.make_array(array_type)(context, builder, arguments[0])
    indices = zip(cgutils.unpack_tuple(builder, arguments[1]), index_type.types, strict=True)
    places = [context.cast(builder, place, kind, types.intp) for place, kind in indices]
    cell = cgutils.get_item_pointer(context, builder, array_type, proxy, places, wraparound=False)
    return builder.bitcast(cell, vector.as_pointer())


def _loader(width: int) -> Any:
    def load(typing_context: Any, array: Any, index: Any) -> Any:
        lanes = Lanes(array.dtype, width)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            cells = _pointer(context, builder, signature, arguments, _llvm(lanes))
            return builder.load(cells, align=array.dtype.bitwidth // 8)

        return lanes(array, index), generate

    load.__doc__ = f"Read {width} neighbouring cells of a contiguous array, starting at the index."
    return intrinsic(load)


load8 = _loader(8)
load16 = _loader(16)


@intrinsic
def store(typing_context: Any, array: Any, index: Any, lanes: Any) -> Any:
    """Write the lanes to neighbouring cells of a contiguous array, starting at the index."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        cells = _pointer(context, builder, signature, arguments, arguments[2].type)
        builder.store(arguments[2], cells, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.none(array, index, lanes), generate


@intrinsic
def splat(typing_context: Any, scalar: Any, like: Any) -> Any:
    """The scalar on every lane, in the type of `like`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = context.cast(builder, arguments[0], signature.args[0], like.dtype)
        return _broadcast(builder, value, _llvm(like))

    return like(scalar, like), generate


def _lanewise(function: Callable[..., Any]) -> Any:
    """Make an intrinsic of function(builder, *values); the result has the first value's type."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return function(builder, *arguments)

    def one(typing_context: Any, a: Any) -> Any:
        return a(a), generate

    def two(typing_context: Any, a: Any, b: Any) -> Any:
        return a(a, b), generate

    def three(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
        return a(a, b, c), generate

    operation = (one, two, three)[function.__code__.co_argcount - 2]
    operation.__doc__ = function.__doc__
    return intrinsic(operation)


def _arithmetic(name: str) -> Any:
    return _lanewise(lambda builder, a, b: getattr(builder, name)(a, b, flags=("contract",)))


add = _arithmetic("fadd")  # a + b on every lane
subtract = _arithmetic("fsub")  # a - b
multiply = _arithmetic("fmul")  # a * b


@_lanewise
def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c on every lane, rounded once."""
    return _call(builder, "fma", a, b, c)


@_lanewise
def residual(builder: Any, x: Any, scale: Any, location: Any) -> Any:
    """x * scale - location on every lane, and 0 where x is missing (NaN)."""
    difference = _call(builder, "fma", x, scale, builder.fneg(location))
    present = builder.fcmp_ordered("ord", x, x)
    return builder.select(present, difference, ir.Constant(x.type, None))


@_lanewise
def minimum(builder: Any, a: Any, b: Any) -> Any:
    """The smaller of a and b on every lane. No lane may be NaN."""
    return builder.select(builder.fcmp_ordered("<", a, b), a, b)


@_lanewise
def zero_if_missing(builder: Any, x: Any) -> Any:
    """x on every lane, and 0 where it is missing (NaN)."""
    return builder.select(builder.fcmp_ordered("ord", x, x), x, ir.Constant(x.type, None))


def _fold(builder: Any, vector: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """Combine the upper half of a vector with the lower until one number is left."""
    while vector.type.count > 1:
        half = vector.type.count // 2
        nothing = ir.Constant(vector.type, ir.Undefined)
        index = ir.VectorType(ir.IntType(32), half)
        places = (ir.Constant(index, list(range(at, at + half))) for at in (0, half))
        low, high = (builder.shuffle_vector(vector, nothing, place) for place in places)
        vector = combine(low, high)
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))


@intrinsic
def total(typing_context: Any, lanes: Any) -> Any:
    """The sum of the lanes, added in pairs."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _fold(builder, arguments[0], builder.fadd)

    return lanes.dtype(lanes), generate


@intrinsic
def totals(typing_context: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """The sums of the lanes of four vectors of sixteen, as a vector of four. Cheaper together."""
    result = Lanes(a.dtype, 4)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def pick(one: Any, other: Any, places: list[int]) -> Any:
            index = ir.Constant(ir.VectorType(ir.IntType(32), len(places)), places)
            return builder.shuffle_vector(one, other, index)

        def fold(one: Any, other: Any, width: int) -> Any:
            """Fold runs of `width` lanes of both to half, side by side."""
            runs = range(0, 32, width)
            low = [run + lane for run in runs for lane in range(width // 2)]
            high = [place + width // 2 for place in low]
            return builder.fadd(pick(one, other, low), pick(one, other, high))

        first, second, third, fourth = arguments
        whole = fold(fold(first, second, 16), fold(third, fourth, 16), 8)
        low, high = [0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15]
        halves = builder.fadd(pick(whole, whole, low), pick(whole, whole, high))
        return builder.fadd(pick(halves, halves, [0, 2, 4, 6]), pick(halves, halves, [1, 3, 5, 7]))

    return result(a, b, c, d), generate


@intrinsic
def largest(typing_context: Any, lanes: Any) -> Any:
    """The largest lane. No lane may be NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def larger(a: Any, b: Any) -> Any:
            return builder.select(builder.fcmp_ordered(">", a, b), a, b)

        return _fold(builder, arguments[0], larger)

    return lanes.dtype(lanes), generate


@intrinsic
def convert(typing_context: Any, lanes: Any, like: Any) -> Any:
    """The lanes in the number type of `like`."""
    target = Lanes(like.dtype, lanes.width)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, wanted = lanes.dtype.bitwidth, target.dtype.bitwidth
        if source < wanted:
            return builder.fpext(arguments[0], _llvm(target))
        if source > wanted:
            return builder.fptrunc(arguments[0], _llvm(target))
        return arguments[0]

    return target(lanes, like), generate


# exp(x) = 2^n * exp(r) with |r| <= log(2) / 2. The Taylor polynomial of degree 13 then errs by less
# than one rounding.
_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10
_EXP_DEGREE = 13
_EXP_LOWEST = -708.0


def _constants(value: Any) -> tuple[Any, Any, Callable[[float], Any], Callable[[int], Any]]:
    """Float64 and int64 vector types as wide as the value, and makers of their constants."""
    kinds = value.type, ir.VectorType(ir.IntType(64), value.type.count)
    number, integer = (lambda n, kind=k: ir.Constant(kind, [n] * kind.count) for k in kinds)
    return *kinds, number, integer


@_lanewise
def exp(builder: Any, x: Any) -> Any:
    """The exponential of every float64 lane, none above 0; below -708 the result is 0."""
    vector, whole, number, integer = _constants(x)
    tiny = builder.fcmp_ordered("<", x, number(_EXP_LOWEST))
    x = builder.select(tiny, number(_EXP_LOWEST), x)
    n = _call(builder, "rint", builder.fmul(x, number(_LOG2_E)))
    r = _call(builder, "fma", n, number(-_LN2_HIGH), x)
    r = _call(builder, "fma", n, number(-_LN2_LOW), r)
    coefficients = list(accumulate(range(1, _EXP_DEGREE + 1), truediv, initial=1.0))
    value = number(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = _call(builder, "fma", value, r, number(coefficient))
    exponent = builder.add(builder.fptosi(n, whole), integer(1023))
    power = builder.bitcast(builder.shl(exponent, integer(52)), vector)
    return builder.select(tiny, ir.Constant(vector, None), builder.fmul(value, power))


# log(y) = e * log(2) + log(m) with m in [1/sqrt(2), sqrt(2)); log(m) = 2 atanh((m - 1) / (m + 1)),
# with eleven terms of the series.
_LOG_TERMS = 11
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD


@_lanewise
def log(builder: Any, x: Any) -> Any:
    """Natural logarithm of every float64 lane, all positive, normal and finite."""
    vector, whole, number, integer = _constants(x)
    above = builder.sub(builder.bitcast(x, whole), integer(_SQRT_HALF_BITS))
    exponent = builder.ashr(above, integer(52))
    mantissa = builder.and_(above, integer((1 << 52) - 1))
    m = builder.bitcast(builder.add(mantissa, integer(_SQRT_HALF_BITS)), vector)
    s = builder.fdiv(builder.fsub(m, number(1.0)), builder.fadd(m, number(1.0)))
    square = builder.fmul(s, s)
    series = number(1.0 / (2 * _LOG_TERMS + 1))
    for term in range(_LOG_TERMS - 1, -1, -1):
        series = _call(builder, "fma", series, square, number(1.0 / (2 * term + 1)))
    twice = builder.fadd(s, s)
    low = builder.fmul(builder.sitofp(exponent, vector), number(_LN2_HIGH + _LN2_LOW))
    return _call(builder, "fma", twice, series, low)
