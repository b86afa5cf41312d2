//! Random numbers and layouts for cases of the operations.

use warptile::{Element, Layout};

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// From `low` to `high`, both included.
    pub(crate) fn within(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() % (high - low + 1) as u64) as usize
    }

    /// True once in `times`.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.within(1, times) == 1
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.within(0, of.len() - 1)]
    }

    /// Evenly between -1 and 1.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// A layout without overlap: dimensions in any order, rows of heads with any gap between them or none.
    pub(crate) fn layout(&mut self, shape: [usize; 4]) -> Layout {
        let mut order = [0, 1, 2];
        for last in [2, 1] {
            order.swap(last, self.within(0, last));
        }
        let gap = self.pick(&[0, 0, 8, 16, 3]);
        let mut strides = [0, 0, 0, 1];
        let mut step = shape[3] + gap;
        for dimension in order {
            strides[dimension] = step;
            step *= shape[dimension].max(1);
        }
        Layout::new(shape, strides)
    }
}

/// Elements in memory: they begin at `offset`, which may be no multiple of 16 bytes.
#[derive(Clone)]
pub(crate) struct Memory<T> {
    pub(crate) data: Vec<T>,
    pub(crate) offset: usize,
    pub(crate) layout: Layout,
}

impl<T: Element> Memory<T> {
    /// `value` of batch entry, row, head and column; `gap` between rows, before and after.
    pub(crate) fn new(
        random: &mut Random,
        layout: Layout,
        gap: f32,
        mut value: impl FnMut([usize; 4]) -> f32,
    ) -> Self {
        let offset = random.pick(&[0, 0, 8, 1]);
        let reach = layout.required_len().unwrap();
        let mut data = vec![T::from_f32(gap); offset + reach + 5];
        let [batch, rows, heads, head_dim] = layout.shape;
        for entry in 0..batch {
            for row in 0..rows {
                for head in 0..heads {
                    let start = offset + layout.offset(entry, row, head);
                    for column in 0..head_dim {
                        data[start + column] = T::from_f32(value([entry, row, head, column]));
                    }
                }
            }
        }
        Memory {
            data,
            offset,
            layout,
        }
    }

    /// A row of a head.
    pub(crate) fn row(&self, entry: usize, row: usize, head: usize) -> &[T] {
        let start = self.offset + self.layout.offset(entry, row, head);
        &self.data[start..start + self.layout.head_dim()]
    }

    /// Returns true if everything that is no element of the layout has the bits that it has in `before`.
    pub(crate) fn gaps_are_those_of(&self, before: &Self) -> bool {
        let mut is_gap = vec![true; self.data.len()];
        let [batch, rows, heads, head_dim] = self.layout.shape;
        for entry in 0..batch {
            for row in 0..rows {
                for head in 0..heads {
                    let start = self.offset + self.layout.offset(entry, row, head);
                    is_gap[start..start + head_dim].fill(false);
                }
            }
        }
        let pairs = self.data.iter().zip(&before.data).zip(is_gap);
        pairs
            .filter(|(_, is_gap)| *is_gap)
            .all(|((a, b), _)| bytemuck::bytes_of(a) == bytemuck::bytes_of(b))
    }
}
