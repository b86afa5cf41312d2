//! New keys and values written into pages.

use candle_core::{DType, Device, Result, Tensor};
use warptile_candle::{write_to_pages, write_to_pages_quantized};

/// How the pages of keys and values lie in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cache {
    /// Two tensors.
    Apart,
    /// One tensor `(2, pages, page rows, heads, head size)`.
    Stacked,
    /// One tensor `(pages, page rows, 2, heads, head size)`.
    Interleaved,
    /// Two tensors `(pages, heads, page rows, head size)`.
    HeadsFirst,
}

pub(crate) const CACHES: [Cache; 4] = [
    Cache::Apart,
    Cache::Stacked,
    Cache::Interleaved,
    Cache::HeadsFirst,
];

const PAGES: usize = 5;
const ROWS: usize = 6;
const HEADS: usize = 2;
const SIZE: usize = 16;

impl Cache {
    /// Keys' and values' pages, filled with 0.5.
    fn pages(self, dtype: DType, device: &Device) -> Result<[Tensor; 2]> {
        let filled = |shape: &[usize]| {
            Tensor::full(0.5_f32, shape, &Device::Cpu)?
                .to_dtype(dtype)?
                .to_device(device)
        };
        Ok(match self {
            Cache::Apart => [
                filled(&[PAGES, ROWS, HEADS, SIZE])?,
                filled(&[PAGES, ROWS, HEADS, SIZE])?,
            ],
            Cache::Stacked => {
                let both = filled(&[2, PAGES, ROWS, HEADS, SIZE])?;
                [both.get(0)?, both.get(1)?]
            }
            Cache::Interleaved => {
                let both = filled(&[PAGES, ROWS, 2, HEADS, SIZE])?;
                [
                    both.narrow(2, 0, 1)?.squeeze(2)?,
                    both.narrow(2, 1, 1)?.squeeze(2)?,
                ]
            }
            Cache::HeadsFirst => {
                let one = || filled(&[PAGES, HEADS, ROWS, SIZE])?.transpose(1, 2);
                [one()?, one()?]
            }
        })
    }
}

/// Writes rows to slots, some of which do not exist, and compares every page.
pub(crate) fn check(cache: Cache, dtype: DType, device: &Device) -> Result<()> {
    let slots = [7_i64, -1, 29, 0, 30, 12, i64::MIN];
    let pages = cache.pages(dtype, device)?;
    let new = [1.0, 100.0].map(|first| -> Result<Tensor> {
        let values: Vec<f32> = (0..slots.len() * HEADS * SIZE)
            .map(|i| first + i as f32 / 64.0)
            .collect();
        rows(values, dtype, device)
    });
    let [k, v] = new;
    let (k, v) = (k?, v?);
    write_to_pages(&k, &v, &pages[0], &pages[1], &Tensor::new(&slots, device)?)?;
    for (new, pages) in [k, v].into_iter().zip(pages) {
        let new = wide(new)?;
        assert_eq!(wide(pages)?, placed(new, slots), "{cache:?} in {dtype:?}");
    }
    Ok(())
}

/// The same into pages in e4m3, with a scale of each head for keys and one for all values.
pub(crate) fn check_e4m3(cache: Cache, dtype: DType, device: &Device) -> Result<()> {
    let slots = [7_i64, -1, 29, 0, 30, 12, i64::MIN];
    let pages = cache.pages(DType::F8E4M3, device)?;
    // Numbers that e4m3 has, times scales that change no bit of them.
    let stored: Vec<f32> = (0..slots.len() * HEADS * SIZE)
        .map(|i| (i % 31) as f32 - 15.0)
        .collect();
    let scales = [[0.5, 0.25], [4.0, 4.0]];
    let new = scales.map(|scales: [f32; HEADS]| {
        let scale = |i: usize| scales[i / SIZE % HEADS];
        let values = { stored.iter().enumerate() }.map(|(i, x)| x * scale(i));
        rows(values.collect(), dtype, device)
    });
    let [k, v] = new;
    let (k, v) = (k?, v?);
    let slots_here = Tensor::new(&slots, device)?;
    let (k_scale, v_scale) = (
        Tensor::new(&scales[0], device)?,
        Tensor::new(4_f32, device)?,
    );
    write_to_pages_quantized(
        &k,
        &v,
        &pages[0],
        &pages[1],
        &slots_here,
        &k_scale,
        &v_scale,
    )?;
    let stored: Vec<Vec<f32>> = stored.chunks(HEADS * SIZE).map(<[f32]>::to_vec).collect();
    for pages in pages {
        let expected = placed(stored.clone(), slots);
        assert_eq!(wide(pages)?, expected, "{cache:?} of {dtype:?}");
    }
    Ok(())
}

/// Rows with a gap between them, and not from the first of the tensor on.
fn rows(values: Vec<f32>, dtype: DType, device: &Device) -> Result<Tensor> {
    let count = values.len() / (HEADS * SIZE);
    Tensor::from_vec(values, (count, HEADS, SIZE), &Device::Cpu)?
        .to_dtype(dtype)?
        .pad_with_zeros(2, 8, 0)?
        .to_device(device)?
        .narrow(2, 8, SIZE)
}

/// The rows of a tensor of them, or of pages.
fn wide(tensor: Tensor) -> Result<Vec<Vec<f32>>> {
    let tensor = tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
    tensor.reshape(((), HEADS * SIZE))?.to_vec2()
}

/// The expected contents of the pages after rows were written to their slots.
fn placed<const N: usize>(new: Vec<Vec<f32>>, slots: [i64; N]) -> Vec<Vec<f32>> {
    let mut expected = vec![vec![0.5; HEADS * SIZE]; PAGES * ROWS];
    for (row, slot) in new.into_iter().zip(slots) {
        let place = usize::try_from(slot)
            .ok()
            .and_then(|slot| expected.get_mut(slot));
        if let Some(place) = place {
            *place = row;
        }
    }
    expected
}
