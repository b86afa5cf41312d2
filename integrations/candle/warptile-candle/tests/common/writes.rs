//! New keys and values written into pages.

use candle_core::{DType, Device, Result, Tensor};
use warptile_candle::write_to_pages;

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
    let [k_pages, v_pages] = cache.pages(dtype, device)?;
    let new = |first: f32| {
        let values: Vec<f32> = (0..slots.len() * HEADS * SIZE)
            .map(|i| first + i as f32 / 64.0)
            .collect();
        // Rows with a gap between them, and not from the first of the tensor on.
        let tensor =
            Tensor::from_vec(values, (slots.len(), HEADS, SIZE), &Device::Cpu)?.to_dtype(dtype)?;
        tensor
            .pad_with_zeros(2, 8, 0)?
            .to_device(device)?
            .narrow(2, 8, SIZE)
    };
    let (k, v) = (new(1.0)?, new(100.0)?);
    write_to_pages(&k, &v, &k_pages, &v_pages, &Tensor::new(&slots, device)?)?;
    for (name, new, pages) in [("keys", k, k_pages), ("values", v, v_pages)] {
        let rows = |tensor: Tensor| {
            tensor
                .to_device(&Device::Cpu)?
                .to_dtype(DType::F32)?
                .flatten_from(1)?
                .to_vec2::<f32>()
        };
        let new = rows(new)?;
        let mut expected = vec![vec![0.5; HEADS * SIZE]; PAGES * ROWS];
        for (row, slot) in new.into_iter().zip(slots) {
            if let Some(place) = usize::try_from(slot)
                .ok()
                .and_then(|slot| expected.get_mut(slot))
            {
                *place = row;
            }
        }
        let found = pages.to_device(&Device::Cpu)?.flatten(0, 1)?;
        assert_eq!(rows(found)?, expected, "{name} of {cache:?} in {dtype:?}");
    }
    Ok(())
}
