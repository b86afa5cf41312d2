//! Stands in for the tile registers where there are none.

use crate::cpu::isa::Isa;

/// Lanes of a panel.
pub(super) const BLOCK: usize = 32;

/// There are none.
pub(super) enum Tiles {}

impl Tiles {
    /// # Panics
    /// Always: no [`Isa`] has tiles.
    pub(super) fn new() -> Self {
        unreachable!("no instruction set here has tiles")
    }
}

#[derive(Default)]
pub(super) struct Pairs {}

impl Pairs {
    pub(super) fn load_queries<T>(&mut self, _isa: Isa, _rows: &[&[T]], _depths: [usize; 2]) {}

    pub(super) fn load_tile<T>(
        &mut self,
        _isa: Isa,
        _k: &[&[T]],
        _v: &[&[T]],
        _before: usize,
        _next: [&[&[T]]; 2],
    ) {
    }

    pub(super) fn scores(&self, tiles: &Tiles, _: usize, _: usize, _: &mut [f32]) {
        match *tiles {}
    }

    pub(super) fn weights(&mut self, _keys: usize) -> &mut [u32] {
        &mut []
    }

    pub(super) fn add_values(&self, tiles: &Tiles, _: usize, _: &mut [f32]) {
        match *tiles {}
    }
}
