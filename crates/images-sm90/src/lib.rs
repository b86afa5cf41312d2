#![doc = include_str!("../README.md")]
#![no_std]

#[rustfmt::skip]
mod packs;

pub use packs::*;
