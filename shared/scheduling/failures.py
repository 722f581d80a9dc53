"""What a failure's code says of another attempt: useless, or as good as if there had been none."""

# Endings that another attempt can't change.
FINAL_CODES = frozenset(
    {
        "constraint_failed",
        "deadline_exceeded",
        "kv_incompatible",
        "kv_mismatch",
        "kv_too_large",
        "non_finite_logits",
        "worker_crashed",
    }
)

# A process, or what it held, is gone: nothing is wrong with the request. These are tried again for
# as long as its deadline lets them.
LOSS_CODES = frozenset(
    {
        "disconnected",
        "kv_expired",
        "kv_lost",
        "kv_not_holder",
        "kv_stale_epoch",
        "kv_unknown_lease",
        "lease_lost",
        "lost",
        "no_answer",
        "worker_lost",
    }
)
