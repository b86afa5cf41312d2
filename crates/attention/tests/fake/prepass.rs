//! The pre-pass of the backward pass: what is launched, and what is refused.

use half::f16;
use warptile::backward::Prepass;
use warptile::gpu::Bindings;
use warptile::kernels::abi;
use warptile::plan::Choice;
use warptile::spec::{Numbers, Operand};
use warptile::{ElementType, Layout};
use warptile_driver::{DeviceBuffer, Stream};
use warptile_fake_cuda::FakeDriver;

use crate::operations::{block, calls_of};
use crate::{addresses, gpu};

struct Memory {
    rows: [DeviceBuffer<f16>; 2],
    lse: DeviceBuffer<f32>,
    results: [DeviceBuffer<f32>; 2],
}

impl Memory {
    fn new(stream: &Stream, layout: &Layout, len: usize) -> Self {
        let rows = || DeviceBuffer::zeroed(stream, layout.required_len().unwrap()).unwrap();
        let floats = |len| DeviceBuffer::zeroed(stream, len).unwrap();
        Memory {
            rows: [rows(), rows()],
            lse: floats(layout.shape[..3].iter().product()),
            results: [floats(len), floats(len)],
        }
    }

    fn bindings(&mut self) -> Bindings<'_> {
        let [out, d_out] = &self.rows;
        let [delta, scaled] = &mut self.results;
        Bindings::default()
            .with(Operand::Out, out.as_slice())
            .with(Operand::DOut, d_out.as_slice())
            .with(Operand::Lse, self.lse.as_slice())
            .output(Operand::Delta, delta.as_slice_mut())
            .output(Operand::ScaledLse, scaled.as_slice_mut())
    }
}

#[test]
fn a_pre_pass_has_a_cta_for_each_tile_of_a_head() {
    let fake = FakeDriver::open();
    {
        let gpu = gpu(&fake);
        let stream = Stream::new(gpu.context()).unwrap();
        let layout = Layout::packed(200, 3, 136);
        let prepass = Prepass::builder(ElementType::F16, &layout, &layout)
            .numbers(Operand::QueryOffsets, Numbers::Host(&[0, 63, 199]))
            .build()
            .unwrap();
        let mut memory = Memory::new(&stream, &layout, prepass.len());
        let prepared = gpu.prepare_for(&prepass, &Choice::Best).unwrap();
        prepared
            .launch(&stream, &prepass, &memory.bindings())
            .unwrap();
        stream.synchronize().unwrap();
        let launch = &fake.launches()[0];
        assert_eq!(launch.name(), "warptile_prepass_w4_f16");
        // 200 / 64 + 2 tiles of each head.
        assert_eq!((launch.grid, launch.block[0]), ([15, 1, 1], 128));
        let block: abi::Prepass = block(launch);
        // A row has 17 chunks of 16 bytes.
        assert_eq!((block.query_tiles, block.lanes, block.heads), (5, 32, 3));
        assert_eq!((block.lse_batch, block.lse_head), (0, 200));
        assert_ne!(block.sequences.query_offsets, 0);
        assert_eq!(prepared.scratch().bytes, 0);
        let plan = prepared.plan().explain();
        assert!(plan.starts_with("problem  prepass in f16"), "{plan}");
    }
    fake.assert_clean();
}

#[test]
fn a_raw_pre_pass_is_one_driver_call_and_checks_its_addresses() {
    let fake = FakeDriver::open();
    let gpu = gpu(&fake);
    let stream = Stream::new(gpu.context()).unwrap();
    let layout = Layout::bshd([2, 100, 3, 64]);
    let prepass = Prepass::builder(ElementType::F16, &layout, &layout)
        .build()
        .unwrap();
    let memory = Memory::new(&stream, &layout, prepass.len());
    let prepared = gpu.prepare_for(&prepass, &Choice::Best).unwrap();
    let good = addresses([
        (Operand::Out, memory.rows[0].pointer()),
        (Operand::DOut, memory.rows[1].pointer()),
        (Operand::Lse, memory.lse.pointer()),
        (Operand::Delta, memory.results[0].pointer()),
        (Operand::ScaledLse, memory.results[1].pointer()),
    ]);
    let launch = |operand: Operand, address: u64| {
        let mut at = good;
        at[operand] = address;
        // SAFETY: the stand-in runs no kernel; the addresses it is given are those of the buffers.
        let raw = || unsafe { prepared.launch_raw(stream.raw(), &prepass, &at, 0) };
        calls_of(&fake, &gpu, raw)
    };
    for (operand, address, expected) in [
        (Operand::DOut, 0, "d_out is missing"),
        (Operand::Q, 64, "q is given"),
        (Operand::Delta, good[Operand::Out], "delta overlaps out"),
        (
            Operand::Delta,
            good[Operand::ScaledLse],
            "delta overlaps scaled_lse",
        ),
        (Operand::Lse, good[Operand::Lse] + 2, "lse starts at"),
    ] {
        let text = launch(operand, address).unwrap_err();
        assert!(text.starts_with(expected), "{text}");
    }
    assert_eq!(launch(Operand::Out, good[Operand::Out]), Ok(1));
}
