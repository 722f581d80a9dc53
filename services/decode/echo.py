"""The prompt as an answer repeats it."""

from slipstream.services.decode.sequence import DecodeSequence
from slipstream.shared.messages.generate import EchoedPrompt
from slipstream.shared.model.detokenizer import IncrementalDetokenizer, Vocabulary


def echoed_prompt(sequence: DecodeSequence, vocabulary: Vocabulary) -> EchoedPrompt:
    """Return what the request wants to see of its prompt. A long one takes milliseconds."""
    sampling, token_ids = sequence.job.sampling, sequence.job.prompt_token_ids
    wants_logprobs = sampling.num_prompt_logprobs is not None
    stream = IncrementalDetokenizer(vocabulary, (), sampling.skip_special_tokens)
    text = "".join([stream.push(token_id) for token_id in token_ids]) + stream.flush()
    return EchoedPrompt(
        token_ids=token_ids,
        text=text if sampling.echo else "",
        logprobs=[None, *sequence.prompt_logprobs] if wants_logprobs else None,
    )
