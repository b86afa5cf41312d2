//! A Llama of candle-transformers with random weights gives the same logits through candle-flash-attn's functions, which are
//! Warptile's here, as through candle's own operations: a prompt, then tokens one by one with its cache.

use std::collections::HashMap;

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::llama::{Cache, Config, Llama};

const PROMPT: usize = 23;
const STEPS: usize = 20;

fn config(use_flash_attn: bool) -> Config {
    Config {
        hidden_size: 128,
        intermediate_size: 256,
        vocab_size: 500,
        num_hidden_layers: 3,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        max_position_embeddings: 128,
        ..Config::config_7b_v2(use_flash_attn)
    }
}

/// Random weights by the names that the model asks for.
fn weights(config: &Config) -> Result<HashMap<String, Tensor>> {
    let (hidden, inner, vocabulary) = (
        config.hidden_size,
        config.intermediate_size,
        config.vocab_size,
    );
    let kv = hidden / config.num_attention_heads * config.num_key_value_heads;
    let random = |rows: usize, columns: usize| {
        Tensor::randn(
            0_f32,
            1.0 / (columns as f32).sqrt(),
            (rows, columns),
            &Device::Cpu,
        )
    };
    let ones = || Tensor::ones(hidden, DType::F32, &Device::Cpu);
    let mut weights = HashMap::from([
        (
            "model.embed_tokens.weight".to_owned(),
            random(vocabulary, hidden)?,
        ),
        ("lm_head.weight".to_owned(), random(vocabulary, hidden)?),
        ("model.norm.weight".to_owned(), ones()?),
    ]);
    for layer in 0..config.num_hidden_layers {
        let mut add = |name: &str, tensor: Tensor| {
            weights.insert(format!("model.layers.{layer}.{name}.weight"), tensor)
        };
        add("self_attn.q_proj", random(hidden, hidden)?);
        add("self_attn.k_proj", random(kv, hidden)?);
        add("self_attn.v_proj", random(kv, hidden)?);
        add("self_attn.o_proj", random(hidden, hidden)?);
        add("mlp.gate_proj", random(inner, hidden)?);
        add("mlp.up_proj", random(inner, hidden)?);
        add("mlp.down_proj", random(hidden, inner)?);
        add("input_layernorm", ones()?);
        add("post_attention_layernorm", ones()?);
    }
    Ok(weights)
}

/// The logits of every step, each step's token being the likeliest after the one before.
fn generate(
    weights: &HashMap<String, Tensor>,
    use_flash_attn: bool,
    device: &Device,
) -> Result<(Vec<u32>, Tensor)> {
    let config = config(use_flash_attn);
    // On a GPU in f16, which is all that candle-flash-attn takes.
    let dtype = if device.is_cpu() {
        DType::F32
    } else {
        DType::F16
    };
    let model = Llama::load(
        VarBuilder::from_tensors(weights.clone(), dtype, device),
        &config,
    )?;
    let mut cache = Cache::new(true, dtype, &config, device)?;
    let mut tokens: Vec<u32> = (0..PROMPT as u32).map(|i| i * 37 % 500).collect();
    let mut all = Vec::new();
    let mut position = 0;
    for _ in 0..STEPS {
        let input = Tensor::new(&tokens[position..], device)?.unsqueeze(0)?;
        let logits = model
            .forward(&input, position, &mut cache)?
            .to_device(&Device::Cpu)?
            .to_dtype(DType::F32)?;
        position = tokens.len();
        tokens.push(logits.squeeze(0)?.argmax(D::Minus1)?.to_scalar::<u32>()?);
        all.push(logits);
    }
    Ok((tokens, Tensor::cat(&all, 0)?))
}

fn main() -> Result<()> {
    let device = Device::cuda_if_available(0)?;
    let weights = weights(&config(false))?;
    let (tokens, found) = generate(&weights, true, &device)?;
    let (expected_tokens, expected) = generate(&weights, false, &device)?;
    let difference = (found - &expected)?.abs()?.max_all()?.to_scalar::<f32>()?;
    let largest = expected.abs()?.max_all()?.to_scalar::<f32>()?;
    println!(
        "{} layers, {PROMPT} tokens and {STEPS} steps on {:?}: logits up to {largest:.2}, largest difference {difference:.1e}",
        config(true).num_hidden_layers,
        device.location()
    );
    let allowed = if device.is_cpu() { 1e-4 } else { 0.1 };
    match tokens == expected_tokens && difference < allowed {
        true => Ok(()),
        false => candle_core::bail!("the models differ: {tokens:?} and {expected_tokens:?}"),
    }
}
