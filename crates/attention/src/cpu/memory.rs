//! Memory that registers load from and store to.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bytemuck::{Pod, Zeroable};

/// A cache line.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Numbers whose first one begins a cache line. A register of AVX-512 or a row of a tile is as long as a line: anywhere else each
/// of them would lie in two, which halves the speed of tile registers and more.
#[derive(Clone, Default)]
pub(super) struct Memory<T> {
    lines: Vec<Line>,
    len: usize,
    numbers: PhantomData<T>,
}

impl<T: Pod> Memory<T> {
    /// Makes room for this many numbers; new ones are 0.
    pub(super) fn resize(&mut self, len: usize) {
        let lines = len.div_ceil(size_of::<Line>() / size_of::<T>());
        self.lines.resize(lines, Line::zeroed());
        self.len = len;
    }
}

impl<T: Pod> Deref for Memory<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl<T: Pod> DerefMut for Memory<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_begin_a_line_and_stay_when_there_are_more() {
        let mut memory = Memory::<f32>::default();
        assert!(memory.is_empty());
        for len in [1, 16, 17, 1000, 3] {
            memory.resize(len);
            assert_eq!(memory.len(), len);
            assert!(memory.as_ptr().addr().is_multiple_of(64));
            memory[len - 1] += 1.0;
        }
        assert_eq!(memory[..], [1.0, 0.0, 1.0]);
    }
}
