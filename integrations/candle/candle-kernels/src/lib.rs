//! Stands in for candle's CUDA kernels: the names that candle-core asks for, and nothing behind them.
//!
//! With it candle-core's `cuda` feature builds without nvcc. On a GPU such a candle allocates, copies and frees, and subtracts u32;
//! an operation that needs another kernel fails when the driver is given its empty PTX or finds no such name, or ends the process if
//! the kernel is one of [`ffi`].

pub mod ffi;

macro_rules! modules {
    ($($id:ident $constant:ident,)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Id {
            $($id,)*
        }

        pub const ALL_IDS: [Id; [$(Id::$id),*].len()] = [$(Id::$id),*];

        $(pub const $constant: Module = Module(Id::$id);)*
    };
}

modules! {
    Affine AFFINE,
    Binary BINARY,
    Cast CAST,
    Conv CONV,
    Fill FILL,
    Indexing INDEXING,
    Quantized QUANTIZED,
    Reduce REDUCE,
    Sort SORT,
    Ternary TERNARY,
    Unary UNARY,
}

pub struct Module(Id);

impl Module {
    pub fn index(&self) -> usize {
        self.0 as usize
    }

    pub fn ptx(&self) -> &'static str {
        match self.0 {
            Id::Binary => include_str!("binary.ptx"),
            _ => "",
        }
    }
}
