//! Every kind of call on candle's CUDA devices, where the driver is a stand-in: it records kernels instead of running them, and checks
//! that what their parameters point to is alive, and in order with copies and fills on other streams. `run.sh` builds and runs it.

use std::ffi::{CStr, c_char, c_int};
use std::thread;
use std::time::Duration;

use candle_core::{DType, Device, Result, Tensor};
use warptile_candle::{
    Attention, Devices, Sharding, flash_attn, flash_attn_varlen_alibi,
    flash_attn_varlen_paged_windowed, flash_attn_windowed, write_to_pages,
    write_to_pages_quantized,
};

// SAFETY: exports of warptile-fake-cuda, as it declares them.
#[link(name = "warptile_fake_cuda")]
unsafe extern "C" {
    safe fn fake_set_compute_capability(major: c_int, minor: c_int);
    safe fn fake_launch_count() -> usize;
    safe fn fake_live(kind: c_int) -> usize;
    safe fn fake_violation_count() -> usize;
    fn fake_violation(index: usize, text: *mut c_char, len: usize);
}

/// Device memory, for `fake_live`.
const DEVICE_MEMORY: c_int = 3;

fn main() -> Result<()> {
    // The one whose kernels draw tiles and share keys by a workspace.
    fake_set_compute_capability(9, 0);
    let default = Device::new_cuda(0)?;
    let mut launches = calls(&default)?;
    check("the default stream", launches);

    let own = Device::new_cuda_with_stream(0)?;
    launches += calls(&own)?;
    check("a stream of one's own", launches);

    for device in [&default, &own] {
        launches += over_two_ranks(device)?;
    }
    check("two ranks", launches);

    // candle 0.11's default stream is another one on each thread.
    let devices = [&default, &own];
    let in_threads: Vec<Result<usize>> = thread::scope(|scope| {
        let spawn = |number: usize| scope.spawn(move || calls(devices[number % 2]));
        let threads: Vec<_> = (0..4).map(spawn).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().expect("no panic");
        threads.into_iter().map(join).collect()
    });
    for count in in_threads {
        launches += count?;
    }
    check("four threads", launches);
    Ok(())
}

/// Panics if the stand-in has seen something wrong, another number of kernels, or memory that was not given back.
fn check(what: &str, launches: usize) {
    for index in 0..fake_violation_count() {
        let mut text = [0; 1000];
        // SAFETY: the text is valid for its length, and ends with a NUL then.
        let text = unsafe {
            fake_violation(index, text.as_mut_ptr(), text.len());
            CStr::from_ptr(text.as_ptr())
        };
        println!("{}", text.to_string_lossy());
    }
    println!(
        "{what}: {} kernels, {} violations, {} allocations left",
        fake_launch_count(),
        fake_violation_count(),
        fake_live(DEVICE_MEMORY)
    );
    assert_eq!(fake_violation_count(), 0);
    assert_eq!(fake_launch_count(), launches);
    assert_eq!(fake_live(DEVICE_MEMORY), 0);
}

/// One sequence over two ranks on a GPU. Returns how many kernels it launches.
fn over_two_ranks(device: &Device) -> Result<usize> {
    let devices = Devices::local(&[device.clone(), device.clone()])?;
    let shards = devices.shards(&Sharding::Zigzag, 256)?;
    // One head: candle transposes it without a kernel, and has no kernels here.
    let all = Tensor::zeros((1, 256, 1, 64), DType::F16, &Device::Cpu)?;
    let out = {
        let rows = devices.split(&shards, &all)?;
        Attention::new(0.125)
            .causal()
            .forward_over(&devices, &shards, [&rows, &rows, &rows])?
    };
    devices.join(&shards, &out, &Device::Cpu)?;
    let waited = devices.group().synchronize(Duration::from_secs(10));
    waited.map_err(candle_core::Error::wrap)?;
    // One for each part of each rank.
    Ok(4)
}

/// Returns how many kernels the calls launch.
fn calls(device: &Device) -> Result<usize> {
    let zeros =
        |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &Device::Cpu)?.to_device(device);
    let list = |numbers: &[u32]| Tensor::new(numbers, device);
    // A copy waits for what the tensor is computed from. The tensors are dropped before, while the kernel is queued.
    let wait = |out: Tensor| out.to_device(&Device::Cpu).map(drop);
    let mut launches = 0;
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let out = {
            let (q, k) = (
                zeros(&[2, 40, 8, 64], dtype)?,
                zeros(&[2, 90, 2, 64], dtype)?,
            );
            flash_attn(&q, &k, &k, 0.125, true)?;
            Attention::new(0.125)
                .causal()
                .forward_with_lse(&q, &k, &k)?
                .1
        };
        wait(out)?;
        let out = {
            let (q, k) = (
                zeros(&[1, 1, 8, 128], dtype)?,
                zeros(&[1, 8192, 2, 128], dtype)?,
            );
            flash_attn(&q, &k, &k, 0.125, true)? // CTAs share keys
        };
        wait(out)?;
        let out = {
            let q = zeros(&[2, 2048, 8, 64], dtype)?;
            flash_attn_windowed(&q, &q, &q, 0.125, Some(100), Some(0))? // CTAs draw tiles
        };
        wait(out)?;
        let slopes = zeros(&[8], DType::F32)?;
        let out = {
            let (q, k) = (zeros(&[30, 8, 64], dtype)?, zeros(&[50, 2, 64], dtype)?);
            let (sq, sk) = (list(&[0, 10, 30])?, list(&[0, 25, 50])?);
            flash_attn_varlen_alibi(&q, &k, &k, &slopes, &sq, &sk, 20, 25, 0.125, true)?
        };
        wait(out)?;
        launches += 5;
        let (k_pages, v_pages) = (
            zeros(&[9, 16, 2, 64], dtype)?,
            zeros(&[9, 16, 2, 64], dtype)?,
        );
        {
            let (k, slots) = (
                zeros(&[3, 2, 64], dtype)?,
                Tensor::new(&[1_i64, -1, 40], device)?,
            );
            write_to_pages(&k, &k, &k_pages, &v_pages, &slots)?;
        }
        wait(k_pages)?;
        launches += 1;
        if dtype != DType::F32 {
            let out = {
                let (q, k) = (
                    zeros(&[2, 1, 8, 64], dtype)?,
                    zeros(&[9, 16, 2, 64], dtype)?,
                );
                let (table, lengths) =
                    (list(&[0, 1, 2, 3, 4, 5])?.reshape((2, 3))?, list(&[40, 3])?);
                Attention::new(0.125)
                    .paged(&table, &lengths, 48)
                    .sinks(&slopes)
                    .forward(&q, &k, &k)?
            };
            wait(out)?;
            launches += 1;
            let out = {
                let both = zeros(&[2, 9, 16, 2, 64], DType::F8E4M3)?;
                let (k_pages, v_pages) = (both.get(0)?, both.get(1)?);
                let (q, k) = (zeros(&[1, 1, 8, 64], dtype)?, zeros(&[3, 2, 64], dtype)?);
                let scales = Tensor::new(&[0.5_f32, 0.25], device)?;
                let slots = Tensor::new(&[32_i64, -1, 33], device)?;
                write_to_pages_quantized(&k, &k, &k_pages, &v_pages, &slots, &scales, &scales)?;
                Attention::new(0.125)
                    .paged(&list(&[2])?.reshape((1, 1))?, &list(&[2])?, 16)
                    .scales(&scales, &scales)
                    .forward(&q, &k_pages, &v_pages)?
            };
            wait(out)?;
            launches += 2;
        }
    }
    refuses_lists_without_memory(device)?;
    refuses_signed_offsets_of_pages(device)?;
    Ok(launches)
}

/// One number repeated by a stride of 0 is not as many numbers in memory.
fn refuses_lists_without_memory(device: &Device) -> Result<()> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F16, &Device::Cpu)?.to_device(device);
    let (q, pages) = (zeros(&[2, 1, 8, 64])?, zeros(&[9, 16, 2, 64])?);
    let table = Tensor::new(&[[0_u32], [1]], device)?;
    let lengths = Tensor::new(&[3_u32], device)?.broadcast_as(2)?;
    let result = Attention::new(0.125)
        .paged(&table, &lengths, 16)
        .forward(&q, &pages, &pages);
    let error = result.map(drop).expect_err("no such list").to_string();
    assert!(
        error.starts_with("attention: key_lengths has stride 0"),
        "{error}"
    );
    Ok(())
}

/// candle has no kernel for the differences of i32.
fn refuses_signed_offsets_of_pages(device: &Device) -> Result<()> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F16, &Device::Cpu)?.to_device(device);
    let (q, pages) = (zeros(&[5, 8, 64])?, zeros(&[9, 16, 2, 64])?);
    let table = Tensor::new(&[[0_u32]], device)?;
    let (sq, sk) = (
        Tensor::new(&[0_u32, 5], device)?,
        Tensor::new(&[0_i32, 5], device)?,
    );
    let result = flash_attn_varlen_paged_windowed(
        &q, &pages, &pages, &sq, &sk, &table, None, 5, 5, 0.125, None, None, 16, None,
    );
    let error = result.map(drop).expect_err("i32 offsets").to_string();
    assert!(
        error.starts_with("flash-attn-varlen: seqlens_k is i32 on a GPU"),
        "{error}"
    );
    Ok(())
}
