//! What fails the build: an image that is correct C++ but not the kernel that was meant.

use crate::inspect::{LogReport, SassCounts};
use crate::instances::{Instance, TensorInstruction};
use warptile_spec::abi::{Append, AppendE4m3, Forward, ForwardE4m3, ForwardTma, Merge, Prepass};
use warptile_spec::record::{ImageRecord, RecordError};

/// Everything the gates look at.
#[derive(Debug)]
pub struct Facts {
    /// The compiler's log.
    pub log: LogReport,
    /// The image's record.
    pub record: Result<ImageRecord, RecordError>,
    /// Whether the entry has machine code.
    pub has_entry: bool,
    /// Size of each parameter by the ELF's own account.
    pub parameter_sizes: Vec<u32>,
    /// Instructions; looked at where [`Instance::expectations`] asks for any.
    pub sass: SassCounts,
}

/// A reason not to ship an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A warning of NVRTC or ptxas.
    #[error("the compiler warns: {0}")]
    Warning(String),
    /// A numbered remark of ptxas.
    #[error("ptxas did not compile what was asked for: {0}")]
    Advisory(String),
    /// Registers spilled.
    #[error(
        "{stores} bytes of spill stores, {loads} bytes of spill loads: use fewer registers or fewer warps"
    )]
    Spill {
        /// Bytes stored.
        stores: u32,
        /// Bytes loaded.
        loads: u32,
    },
    /// Local memory is used.
    #[error(
        "a stack frame of {0} bytes: a local array is indexed by something the compiler cannot fold"
    )]
    Stack(u32),
    /// More shared memory than the target has.
    #[error("{needed} bytes of shared memory per CTA; {target} has {limit}")]
    SharedMemory {
        /// Static and dynamic together.
        needed: u32,
        /// The target's limit.
        limit: u32,
        /// The target.
        target: String,
    },
    /// Compiled to no tensor-core instruction.
    #[error("no {0} in the machine code: the products do not run on tensor cores")]
    NoTensorInstruction(&'static str),
    /// Register reallocation did not survive.
    #[error("no USETMAXREG in the machine code: setmaxnreg was ignored")]
    SetmaxnregIgnored,
    /// Launches begin early, and the kernel does not wait.
    #[error(
        "no ACQBULK in the machine code: the launch begins before the one ahead has ended, and does not wait for it"
    )]
    NoWait,
    /// Missing, cut short, or not a record.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The record contradicts the instance.
    #[error("the record says {field} = {found}, instances.toml says {expected}")]
    RecordMismatch {
        /// The field.
        field: &'static str,
        /// In the record.
        found: u32,
        /// In the instance.
        expected: u32,
    },
    /// The entry is not there.
    #[error("no entry function `{0}`: name it WARPTILE_ENTRY")]
    EntryMissing(String),
    /// Other entries than the one.
    #[error("entry functions besides `{expected}`: {}", others.join(", "))]
    OtherEntries {
        /// The one wanted.
        expected: String,
        /// The rest.
        others: Vec<String>,
    },
    /// The record's block is none of the host's.
    #[error(
        "takes no parameter block that this program declares: the record has {hash:#018x} and {bytes} bytes; \
         kernels/base/abi.cuh was changed by hand"
    )]
    UnknownBlock {
        /// In the record.
        hash: u64,
        /// In the record.
        bytes: u32,
    },
    /// The record's parameter block is not the one parameter the entry takes.
    #[error(
        "the record says the parameter block has {record} bytes, the entry takes parameters of {entry:?} bytes"
    )]
    ParamBytes {
        /// In the record.
        record: u32,
        /// In the ELF, one per parameter.
        entry: Vec<u32>,
    },
}

/// Every gate the image fails.
#[must_use]
pub fn violations(instance: &Instance, facts: &Facts) -> Vec<Violation> {
    let mut found = Vec::new();
    let log = &facts.log;
    found.extend(log.warnings.iter().cloned().map(Violation::Warning));
    found.extend(log.advisories.iter().cloned().map(Violation::Advisory));
    if instance.expectations.may_spill {
        // Asserts need registers, and nobody times them.
    } else if log.spill_store_bytes > 0 || log.spill_load_bytes > 0 {
        found.push(Violation::Spill {
            stores: log.spill_store_bytes,
            loads: log.spill_load_bytes,
        });
    } else if log.stack_bytes > 0 {
        found.push(Violation::Stack(log.stack_bytes));
    }
    let entry = instance.entry();
    if !facts.has_entry {
        found.push(Violation::EntryMissing(entry.clone()));
    }
    let others: Vec<String> = log
        .entries
        .iter()
        .filter(|name| **name != entry)
        .cloned()
        .collect();
    if !others.is_empty() {
        found.push(Violation::OtherEntries {
            expected: entry,
            others,
        });
    }
    match &facts.record {
        Ok(record) => check_record(instance, facts, record, &mut found),
        Err(error) => found.push(error.clone().into()),
    }
    match instance.expectations.tensor_instruction {
        TensorInstruction::Hmma if facts.sass.hmma == 0 => {
            found.push(Violation::NoTensorInstruction("HMMA"))
        }
        TensorInstruction::Hgmma if facts.sass.hgmma == 0 => {
            found.push(Violation::NoTensorInstruction("HGMMA"))
        }
        _ => {}
    }
    if instance.expectations.setmaxnreg && facts.sass.usetmaxreg == 0 {
        found.push(Violation::SetmaxnregIgnored);
    }
    found
}

fn check_record(
    instance: &Instance,
    facts: &Facts,
    record: &ImageRecord,
    found: &mut Vec<Violation>,
) {
    let row = &instance.tiling;
    let tiling = &record.tiling;
    for (field, in_record, in_instance) in [
        ("head_dim", tiling.head_dim, row.head_dim),
        ("value_dim", tiling.value_dim, row.value_dim()),
        ("block_m", tiling.block_m, row.block_m),
        ("block_n", tiling.block_n, row.block_n),
        ("stages", tiling.stages, row.stages),
        ("warps", tiling.warps, row.warps),
        (
            "element_bytes",
            record.element_bytes,
            instance.element.size(),
        ),
    ] {
        if in_record != in_instance {
            found.push(Violation::RecordMismatch {
                field,
                found: in_record,
                expected: in_instance,
            });
        }
    }
    let known = record.takes::<Forward>()
        || record.takes::<ForwardE4m3>()
        || record.takes::<ForwardTma>()
        || record.takes::<Merge>()
        || record.takes::<Append>()
        || record.takes::<AppendE4m3>()
        || record.takes::<Prepass>();
    if !known {
        found.push(Violation::UnknownBlock {
            hash: record.abi_hash,
            bytes: record.param_bytes,
        });
    }
    if facts.parameter_sizes != [record.param_bytes] {
        found.push(Violation::ParamBytes {
            record: record.param_bytes,
            entry: facts.parameter_sizes.clone(),
        });
    }
    // PTX is launched in order.
    let can_begin_early = !instance.target.ptx && instance.target.number >= 90;
    if can_begin_early && record.schedule.begins_early() && facts.sass.acqbulk == 0 {
        found.push(Violation::NoWait);
    }
    let needed = record
        .shared_bytes
        .saturating_add(facts.log.static_shared_bytes);
    let limit = instance.target.shared_memory_limit();
    if needed > limit {
        found.push(Violation::SharedMemory {
            needed,
            limit,
            target: instance.target.to_string(),
        });
    }
}
