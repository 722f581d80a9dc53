"""The wall: what a step must compute and read, and how long a machine needs for either at least."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from slipstream.shared.errors import ConfigurationError
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.model.config import ModelConfig

# Without scales, sums and padding, which are some 2 %; a packed file's own bytes are exact. Of int4
# each group of 32 has a factor and an offset of 16 bits.
BYTES_PER_WEIGHT = {"float32": 4.0, "float16": 2.0, "bf16": 2.0, "int8": 1.0, "int4": 0.625}
_HEAD_FORMAT = {"int4": "int8"}  # what the output head is kept in, where that is another
KV_FORMATS = ("float32", "float16", "bf16", "int8")
# Numbers without arithmetic of their own are computed in the next wider one. Data sheets give one
# rate for both formats of 16 bits, which stands under float16.
_NARROW_TO_WIDE = ("int4", "int8", "bf16", "float16", "float32")

Resource = Literal["memory", "compute"]


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a machine reads and computes a second, at most."""

    name: str
    bytes_per_s: float
    operations_per_s: Mapping[str, float]  # by number format; a multiply-add counts as two

    def rate_of(self, number_format: str) -> float:
        """Return the operations a second on such numbers. Raises ConfigurationError."""
        wider = _NARROW_TO_WIDE[_NARROW_TO_WIDE.index(number_format) :]
        found = next((name for name in wider if name in self.operations_per_s), None)
        if found is None:
            known = ", ".join(self.operations_per_s)
            raise ConfigurationError(f"{self.name} is known for {known}, not for {number_format}")
        return self.operations_per_s[found]


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """What of a model's shape counts here."""

    name: str
    num_layer_weights: int  # of all matrices that every row is multiplied with
    num_head_weights: int  # of the output head, which only rows with logits meet
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, config: ModelConfig) -> "ModelSizes":
        """Count the weights of the matrices; an embedding that is only looked up is not read."""
        attention = 2 * config.head_dim * (config.num_heads + config.num_kv_heads)
        per_layer = config.hidden_size * (attention + 3 * config.intermediate_size)
        return cls(
            name=config.name,
            num_layer_weights=config.num_layers * per_layer,
            num_head_weights=config.hidden_size * config.vocab_size,
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
        )

    @property
    def num_weights(self) -> int:
        """All that a step reads."""
        return self.num_layer_weights + self.num_head_weights

    def weight_bytes(self, weight_format: str) -> float:
        """Return the bytes of all weights."""
        head_format = _HEAD_FORMAT.get(weight_format, weight_format)
        layers = self.num_layer_weights * BYTES_PER_WEIGHT[weight_format]
        return layers + self.num_head_weights * BYTES_PER_WEIGHT[head_format]

    def kv_bytes_per_token(self, kv_format: str) -> int:
        """Return what one position takes in all layers."""
        # float16, which no engine of ours has, is as large as bf16.
        known = "bf16" if kv_format == "float16" else kv_format
        layout = KvLayout(self.num_layers, self.num_kv_heads, self.head_dim, dtype=known)
        return layout.bytes_per_token

    def attention_operations(self, num_pairs: int) -> int:
        """Return those of so many (row, position) pairs: a dot product, and a weighted sum."""
        return 4 * num_pairs * self.num_layers * self.num_heads * self.head_dim


# For the case of the textbooks: nothing but the number counts; attention as in Llama 2 7B.
SEVEN_BILLION = ModelSizes("7b", 7_000_000_000, 0, 32, 32, 32, 128)


@dataclass(frozen=True, slots=True)
class Step:
    """What one step must do: operations by the format of their numbers, and bytes to be read."""

    num_tokens: int  # that it brings forward
    weight_format: str
    kv_format: str
    matrix_operations: float
    attention_operations: float
    weight_bytes: float
    kv_bytes: float

    @property
    def operations(self) -> float:
        """All of them."""
        return self.matrix_operations + self.attention_operations

    @property
    def num_bytes(self) -> float:
        """All of them."""
        return self.weight_bytes + self.kv_bytes


def decode_step(
    sizes: ModelSizes,
    weight_format: str,
    kv_format: str,
    *,
    batch: int,
    context: int,
    weight_bytes: float | None = None,
) -> Step:
    """Return one token each of `batch` sequences that have `context` positions in the cache."""
    return Step(
        num_tokens=batch,
        weight_format=weight_format,
        kv_format=kv_format,
        matrix_operations=2.0 * batch * sizes.num_weights,
        attention_operations=sizes.attention_operations(batch * context),
        weight_bytes=sizes.weight_bytes(weight_format) if weight_bytes is None else weight_bytes,
        kv_bytes=batch * context * sizes.kv_bytes_per_token(kv_format),
    )


def prefill_step(
    sizes: ModelSizes,
    weight_format: str,
    kv_format: str,
    *,
    num_tokens: int,
    weight_bytes: float | None = None,
) -> Step:
    """Return a prompt in one chunk: every row attends to those before it, the last has logits."""
    matrix = num_tokens * sizes.num_layer_weights + sizes.num_head_weights
    return Step(
        num_tokens=num_tokens,
        weight_format=weight_format,
        kv_format=kv_format,
        matrix_operations=2.0 * matrix,
        attention_operations=sizes.attention_operations(num_tokens * (num_tokens + 1) // 2),
        weight_bytes=sizes.weight_bytes(weight_format) if weight_bytes is None else weight_bytes,
        kv_bytes=num_tokens * sizes.kv_bytes_per_token(kv_format),
    )


@dataclass(frozen=True, slots=True)
class Wall:
    """The two times of a step on a machine; no engine is faster than the longer one."""

    step: Step
    compute_s: float
    memory_s: float

    @classmethod
    def of(cls, step: Step, hardware: Hardware) -> "Wall":
        """Divide the demands by the rates. Raises ConfigurationError."""
        matrices = step.matrix_operations / hardware.rate_of(step.weight_format)
        attention = step.attention_operations / hardware.rate_of(step.kv_format)
        return cls(step, matrices + attention, step.num_bytes / hardware.bytes_per_s)

    @property
    def binds(self) -> Resource:
        """What the step waits for."""
        return "memory" if self.memory_s >= self.compute_s else "compute"

    @property
    def step_s(self) -> float:
        """The longer time."""
        return max(self.memory_s, self.compute_s)

    @property
    def factor(self) -> float:
        """How many times longer what binds takes than the other."""
        return self.step_s / min(self.memory_s, self.compute_s)

    @property
    def tokens_per_s(self) -> float:
        """The most that can come out."""
        return self.step.num_tokens / self.step_s
