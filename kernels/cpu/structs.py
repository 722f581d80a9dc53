"""The C structs of `model.h`, field by field: the names here and there must agree."""

import ctypes

# `Format` of weights and KV.
FORMATS = {"float32": 0, "int8": 1, "int4": 2, "bf16": 3}

# `Phase` of phases.h: the places of `Step.phase_ns`.
PHASES = ("other", "weights", "kv", "cores")

_POINTER = ctypes.c_void_p
_INT = ctypes.c_int32


class Linear(ctypes.Structure):
    """A packed matrix [n, k]."""

    _fields_ = (
        ("n", _INT),
        ("k", _INT),
        ("num_outliers", _INT),
        ("hadamard", _INT),
        ("format", _INT),
        ("reserved", _INT),
        ("weights", _POINTER),
        ("scales", _POINTER),
        ("sums", _POINTER),
        ("outlier_sums", _POINTER),
        ("columns", _POINTER),
        ("outliers", _POINTER),
    )


class Layer(ctypes.Structure):
    """The weights of one layer."""

    _fields_ = (
        ("attention_norm", _POINTER),
        ("mlp_norm", _POINTER),
        ("key_mean", _POINTER),
        ("qkv", Linear),
        ("output", Linear),
        ("gate_up", Linear),
        ("down", Linear),
    )


class Model(ctypes.Structure):
    """A model: sizes, tables, layers."""

    _fields_ = (
        ("num_layers", _INT),
        ("hidden", _INT),
        ("num_heads", _INT),
        ("num_kv_heads", _INT),
        ("head_dim", _INT),
        ("intermediate", _INT),
        ("vocab", _INT),
        ("kv_format", _INT),
        ("max_context", _INT),
        ("epsilon", ctypes.c_float),
        ("cosines", _POINTER),
        ("sines", _POINTER),
        ("final_norm", _POINTER),
        ("layers", _POINTER),
        ("head", Linear),
        ("embedding", _POINTER),
    )


class Sequence(ctypes.Structure):
    """One sequence's rows in a step."""

    _fields_ = (
        ("first_row", _INT),
        ("num_rows", _INT),
        ("num_computed", _INT),
        ("first_block", _INT),
    )


class Step(ctypes.Structure):
    """A packed batch and where its results go."""

    _fields_ = (
        ("num_rows", _INT),
        ("num_sequences", _INT),
        ("num_logit_rows", _INT),
        ("num_threads", _INT),
        ("token_ids", _POINTER),
        ("sequences", _POINTER),
        ("block_tables", _POINTER),
        ("logit_rows", _POINTER),
        ("logits", _POINTER),
        ("kv", _POINTER),
        ("block_bytes", ctypes.c_int64),
        ("is_unfused", _INT),
        ("reserved", _INT),
        ("phase_ns", _POINTER),
    )


ALL = (Linear, Layer, Model, Sequence, Step)
