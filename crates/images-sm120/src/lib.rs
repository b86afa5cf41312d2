#![doc = include_str!("../README.md")]
#![no_std]

#[rustfmt::skip]
#[path = "generated/packs.rs"]
mod packs;

pub use packs::*;
