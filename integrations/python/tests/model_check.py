"""Runs small models of transformers with warptile's attention: ``python model_check.py [--json FILE] [NAME]...``

Needs torch and transformers 5; on the GPU if there is one. The models have random weights: nothing is downloaded. Each is held against itself with
transformers' own attention in float32. NAME runs only the checks whose names contain it.
"""

import argparse
import collections
import copy
import itertools
import json
import sys
import time
import traceback

import torch
import transformers
import warptile.torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALVES = (torch.bfloat16, torch.float16)
SMALL = {
    "vocab_size": 160,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
ENCODER = {key: value for key, value in SMALL.items() if key not in ("num_key_value_heads", "bos_token_id", "eos_token_id")}
HEAD = {"head_dim": 64}

# Class of the configuration, and what it is made with.
DECODERS = {
    "llama": ("LlamaConfig", SMALL),
    "mistral": ("MistralConfig", {**SMALL, "sliding_window": 24}),
    "qwen3": ("Qwen3Config", {**SMALL, **HEAD}),
    "phi3": ("Phi3Config", SMALL),
    "gemma2": ("Gemma2Config", {**SMALL, **HEAD, "sliding_window": 24, "query_pre_attn_scalar": 64}),
    "gemma3": ("Gemma3TextConfig", {**SMALL, **HEAD, "sliding_window": 24, "query_pre_attn_scalar": 64}),
    # Every token goes to all experts: of some, the last bit of a logit would choose others, and that changes the result by a third.
    "gpt_oss": ("GptOssConfig", {**SMALL, **HEAD, "sliding_window": 24, "num_local_experts": 4, "num_experts_per_tok": 4}),
}
CHECKS = {}
# How often warptile's attention was called.
calls = collections.Counter()


def check(function):
    CHECKS[function.__name__] = function
    return function


def seeded(make):
    """A model in float32 with weights that are the same each time, large enough for its tokens to differ."""
    torch.manual_seed(0)
    model = make().float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(2.5)
    return model.to(DEVICE)


def use(model, implementation):
    """Also for the parts with configurations of their own, which transformers leaves out for some models."""
    for module in model.modules():
        if isinstance(module, transformers.PreTrainedModel):
            module.set_attn_implementation(implementation)


def decoder(name):
    config, options = DECODERS[name]
    return seeded(lambda: transformers.AutoModelForCausalLM.from_config(getattr(transformers, config)(**options)))


def errors(reference, model, call, implementations):
    """By each implementation the largest difference from the reference, over the reference's largest value."""
    with torch.no_grad():
        expected = call(reference)
        found = {}
        for name in implementations:
            use(model, name)
            before = calls["warptile"]
            result = call(model).float()
            assert (calls["warptile"] > before) == (name == "warptile"), f"{name}: another attention ran"
            assert torch.isfinite(result).all(), f"{name}: not finite"
            found[name] = ((result - expected).abs().max() / expected.abs().max()).item()
    return found


def compare(reference, dtype, call, implementations=("eager", "warptile")):
    """Fails if warptile's error is larger than twice that of transformers' own attention in the same type."""
    model = copy.deepcopy(reference).to(dtype)
    use(reference, "eager")
    found = errors(reference, model, call, implementations)
    allowed = 2 * max(error for name, error in found.items() if name != "warptile") + 1e-5
    assert found["warptile"] <= allowed, found
    return found["warptile"] / found["eager"] if dtype in HALVES else 0.0


def tokens(batch=3, length=60, start=2):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(start, SMALL["vocab_size"], (batch, length), generator=generator).to(DEVICE)


def padding(batch=3, length=60, left=True):
    """A mask whose sequences have fewer and fewer tokens."""
    mask = torch.ones((batch, length), dtype=torch.long, device=DEVICE)
    for index in range(batch):
        hidden = slice(0, 9 * index) if left else slice(length - 9 * index, length)
        mask[index, hidden] = 0
    return mask


def seen(call, mask):
    """The rows of a call's result without padding."""
    return lambda model: call(model)[mask.bool()]


@check
def decoders():
    """Logits with and without padding: grouped heads, sliding windows, softcap, sinks."""
    worst = {}
    for name in DECODERS:
        reference = decoder(name)
        for dtype, padded in itertools.product((torch.float32, *HALVES), (False, True)):
            mask = padding() if padded else torch.ones_like(padding())
            call = seen(lambda model: model(tokens(), attention_mask=mask if padded else None).logits, mask)
            worst[name] = max(worst.get(name, 0), compare(reference, dtype, call))
    return ", ".join(f"{name} {ratio:.2f}" for name, ratio in worst.items()) + " of eager's error at most"


def check_tokens(reference, model, whole, mask, what):
    """Each token after the prompt is the reference's best, or as good within the noise of the model's type."""
    use(reference, "eager")
    use(model, "eager")
    length = mask.shape[1]
    long = torch.cat([mask, mask.new_ones(len(mask), whole.shape[1] - length)], 1)
    positions = (long.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        exact, rough = (each(whole, attention_mask=long, position_ids=positions).logits[:, length - 1 : -1].float() for each in (reference, model))
    noise = (exact - rough).abs().max()
    chosen = exact.gather(2, whole[:, length:, None])[..., 0]
    behind = (exact.amax(2) - chosen).max()
    assert behind <= 4 * noise + 1e-4, f"{what}: {behind} behind, noise {noise}"


@check
def generation():
    """Greedy tokens, with caches that grow and that do not: each is the reference's best, or as good within the noise of the type."""
    counts = []
    for name in DECODERS:
        reference = decoder(name)
        for dtype, cache in itertools.product((torch.float32, *HALVES), (None, "static")):
            model = copy.deepcopy(reference).to(dtype)
            prompt, mask = tokens(length=30), padding(length=30)
            options = {"max_new_tokens": 24, "do_sample": False, "attention_mask": mask, "disable_compile": True}
            if cache:
                options["cache_implementation"] = cache
            made = {}
            for implementation in ("eager", "warptile"):
                use(model, implementation)
                made[implementation] = model.generate(prompt, **options)
            check_tokens(reference, model, made["warptile"], mask, f"{name} {dtype} {cache}")
            same = (made["eager"] == made["warptile"])[:, 30:].float().mean().item()
            assert same == 1.0 or dtype != torch.float32, f"{name} {cache}: other tokens than eager's in float32"
            counts.append(same)
    return f"{len(counts)} runs; {sum(counts) / len(counts):.0%} of the tokens are eager's"


@check
def compiled():
    """`torch.compile` of a whole model, and of the steps of `generate` with a static cache.

    The error of a compiled model may be twice that of the same model with transformers' own attention, not compiled.
    """
    done = []
    backend = "inductor" if DEVICE == "cuda" else "aot_eager"
    mask = padding()
    for name in ("llama", "gemma2", "gpt_oss"):
        reference = decoder(name)
        use(reference, "eager")
        plain, model = (copy.deepcopy(reference).to(torch.bfloat16) for _ in range(2))
        use(model, "warptile")
        torch._dynamo.reset()
        compiled_model = torch.compile(model, backend=backend, fullgraph=name != "gpt_oss")
        worst = 0.0
        for start in (2, 50):
            inputs = {"input_ids": tokens(start=start), "attention_mask": mask, "use_cache": False}
            with torch.no_grad():
                exact, rough, found = (each(**inputs).logits[mask.bool()].float() for each in (reference, plain, compiled_model))
            allowed = 2 * (rough - exact).abs().max() + 1e-5 * exact.abs().max()
            error = (found - exact).abs().max()
            # Also false for NaN.
            assert error <= allowed, f"{name}: {error} against {allowed / 2} of eager's"
            worst = max(worst, (2 * error / allowed).item())
        done.append(f"{name} {worst:.2f} of eager's error")
    if DEVICE == "cuda":
        reference = decoder("llama")
        model = copy.deepcopy(reference).to(torch.bfloat16)
        use(model, "warptile")
        prompt = tokens(length=30)
        options = {"max_new_tokens": 16, "do_sample": False, "cache_implementation": "static"}
        plain = model.generate(prompt, **options, disable_compile=True)
        torch._dynamo.reset()
        steps = model.generate(prompt, **options)
        check_tokens(reference, model, steps, torch.ones_like(prompt), "compiled steps")
        # Another order of additions may make another of two equally good tokens, and all that follow differ.
        same = (plain == steps)[:, 30:].float().mean().item()
        done.append(f"generate with a static cache ({same:.0%} of the tokens those without compiling)")
    return ", ".join(done)


@check
def encoders():
    """Without a causal mask, padded on the right: BERT, ModernBERT with its windows, ViT, Whisper with cross-attention, T5 with its bias."""
    worst = {}

    def run(name, make, call, mask=None):
        reference = seeded(make)
        for dtype in (torch.float32, *HALVES):
            kept = call if mask is None else seen(call, mask)
            worst[name] = max(worst.get(name, 0), compare(reference, dtype, kept))

    mask = padding(left=False)
    text = {"input_ids": tokens(), "attention_mask": mask}
    run("bert", lambda: transformers.BertModel(transformers.BertConfig(**ENCODER)), lambda m: m(**text).last_hidden_state, mask)
    modern = transformers.ModernBertConfig(**ENCODER, local_attention=16, cls_token_id=1, sep_token_id=1, bos_token_id=1, eos_token_id=1)
    run("modernbert", lambda: transformers.ModernBertModel(modern), lambda m: m(**text).last_hidden_state, mask)
    image = torch.randn((2, 3, 56, 56), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    sizes = {key: SMALL[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")}
    vit = transformers.ViTConfig(**sizes, image_size=56, patch_size=8)
    run("vit", lambda: transformers.ViTModel(vit), lambda m: m(image.to(m.dtype)).last_hidden_state)
    whisper = transformers.WhisperConfig(
        vocab_size=160,
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        max_source_positions=100,
        num_mel_bins=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        decoder_start_token_id=1,
    )
    sound = torch.randn((2, 16, 200), generator=torch.Generator().manual_seed(3)).to(DEVICE)
    run(
        "whisper",
        lambda: transformers.WhisperForConditionalGeneration(whisper),
        lambda m: m(sound.to(m.dtype), decoder_input_ids=tokens(2, 20)).logits,
    )
    t5 = transformers.T5Config(
        vocab_size=160, d_model=128, d_kv=64, d_ff=256, num_layers=2, num_heads=2, pad_token_id=0, decoder_start_token_id=0
    )
    run(
        "t5",
        lambda: transformers.T5ForConditionalGeneration(t5),
        lambda m: m(**text, decoder_input_ids=tokens(3, 20)).logits,
    )
    return ", ".join(f"{name} {ratio:.2f}" for name, ratio in worst.items()) + " of eager's error at most"


@check
def training():
    """Gradients of all weights of a Llama, with padding and without."""
    if DEVICE == "cpu":
        return "only on a GPU"
    results = []
    for padded in (False, True):
        model = decoder("llama").to(torch.bfloat16)
        gradients = {}
        for implementation in ("sdpa", "eager", "warptile"):
            use(model, implementation)
            model.zero_grad()
            options = {"attention_mask": padding()} if padded else {}
            labels = tokens().masked_fill(padding() == 0, -100) if padded else tokens()
            model(tokens(), labels=labels, **options).loss.backward()
            gradients[implementation] = torch.cat([p.grad.float().flatten() for p in model.parameters()])
        own = (gradients["sdpa"] - gradients["eager"]).norm() / gradients["eager"].norm()
        ours = (gradients["warptile"] - gradients["eager"]).norm() / gradients["eager"].norm()
        assert ours <= 2 * own + 1e-3, f"{ours} against {own}"
        results.append(f"{ours:.1e} ({own:.1e} of sdpa)")
    return "difference from eager's: " + ", ".join(results)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="where the results go")
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    warptile.torch.register_with_transformers()

    def counted(*given, **options):
        calls["warptile"] += 1
        return warptile.torch.transformers_attention(*given, **options)

    transformers.AttentionInterface.register("warptile", counted)
    torch.backends.cuda.matmul.allow_tf32 = False
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    print(f"{device}, torch {torch.__version__}, transformers {transformers.__version__}")
    rows = []
    for name, function in CHECKS.items():
        if arguments.names and not any(part in name for part in arguments.names):
            continue
        start = time.perf_counter()
        try:
            result, detail = "ok", function()
        except Exception as caught:
            traceback.print_exc()
            result, detail = "FAILED", f"{type(caught).__name__}: {caught}"
        seconds = time.perf_counter() - start
        rows.append({"check": name, "result": result, "seconds": round(seconds, 2), "detail": detail})
        print(f"{result:8}{name:16}{seconds:7.1f} s  {detail.splitlines()[0] if detail else '':.200}", flush=True)
    failed = [row["check"] for row in rows if row["result"] == "FAILED"]
    report = {"device": device, "torch": torch.__version__, "transformers": transformers.__version__, "checks": rows, "failed": failed}
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(report, file, indent=1)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
