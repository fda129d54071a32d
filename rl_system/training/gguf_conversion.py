"""A Llama model in a GGUF file, converted to a Hugging Face model directory in float32.

GGUF keeps rotary pairs of the query and key projections next to each other, Hugging Face keeps them half a head apart;
the conversion undoes that permutation. The tokenizer is rebuilt from the file's vocabulary and merges; its chat
template is left out, for the one in such files knows no tools.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
SPECIAL_TOKEN_TYPES = {gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED}
DIGIT_SPLITTING_PRETOKENIZERS = {"smollm"}
"""Values of `tokenizer.ggml.pre` that cut numbers into single digits before the byte-level split."""


def convert_llama(source: Path, destination: Path) -> None:
    """Write config, generation config, float32 parameters and tokenizer of the GGUF file `source`.

    Raises ValueError for a file that holds another architecture or an unknown tensor.
    """
    reader = gguf.GGUFReader(source)
    architecture = _field(reader, "general.architecture")
    if architecture != "llama":
        raise ValueError(f"{source} holds a {architecture!r} model; only 'llama' can be converted")
    config = _config(reader)
    save_file(_parameters(reader, config), destination / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(destination)
    GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    ).save_pretrained(destination)
    _tokenizer(reader).save_pretrained(destination)


def _field(reader: gguf.GGUFReader, name: str) -> object:
    field = reader.get_field(name)
    if field is None:
        raise ValueError(f"GGUF file has no field {name}")
    return field.contents()


def _config(reader: gguf.GGUFReader) -> LlamaConfig:
    def number(name: str) -> int | float:
        return _field(reader, f"llama.{name}")

    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=number("vocab_size"),
        hidden_size=number("embedding_length"),
        intermediate_size=number("feed_forward_length"),
        num_hidden_layers=number("block_count"),
        num_attention_heads=number("attention.head_count"),
        num_key_value_heads=number("attention.head_count_kv"),
        max_position_embeddings=number("context_length"),
        # Stored as float32: the shortest decimal that names it is the value the authors wrote.
        rms_norm_eps=float(str(np.float32(number("attention.layer_norm_rms_epsilon")))),
        rope_parameters={"rope_type": "default", "rope_theta": float(number("rope.freq_base"))},
        tie_word_embeddings=all(tensor.name != "output.weight" for tensor in reader.tensors),
        bos_token_id=_field(reader, "tokenizer.ggml.bos_token_id"),
        eos_token_id=_field(reader, "tokenizer.ggml.eos_token_id"),
        pad_token_id=_field(reader, "tokenizer.ggml.padding_token_id"),
        dtype="float32",
    )


def _parameters(reader: gguf.GGUFReader, config: LlamaConfig) -> dict[str, np.ndarray]:
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    parameters = {}
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        kind = tensor.name.removesuffix(".weight").rsplit(".", 1)[-1]
        if kind in heads:
            values = unpermute_rotary(values, heads[kind])
        parameters[_huggingface_name(tensor.name)] = np.ascontiguousarray(values)
    return parameters


def _huggingface_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in OUTER_NAMES:
        return f"{OUTER_NAMES[stem]}.weight"
    block, layer, kind = stem.split(".") if stem.count(".") == 2 else ("", "", "")
    if block != "blk" or kind not in LAYER_NAMES:
        raise ValueError(f"tensor {name!r} belongs to no Llama model")
    return f"model.layers.{layer}.{LAYER_NAMES[kind]}.weight"


def unpermute_rotary(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a projection [heads · head size, hidden] from neighbouring rotary pairs to pairs half a head apart."""
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def _tokenizer(reader: gguf.GGUFReader) -> PreTrainedTokenizerFast:
    tokens = _field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in _field(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if _field(reader, "tokenizer.ggml.pre") in DIGIT_SPLITTING_PRETOKENIZERS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    else:
        tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    types = _field(reader, "tokenizer.ggml.token_type")
    special = [token for token, kind in zip(tokens, types, strict=True) if kind in SPECIAL_TOKEN_TYPES]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=_field(reader, "llama.context_length"),
        clean_up_tokenization_spaces=False,
        **{role: tokens[_field(reader, f"tokenizer.ggml.{name}_token_id")] for role, name in names.items()},
    )
