//! Checks that fail the build: an image that is correct C++ but not the kernel that was meant.

use crate::inspect::{LogReport, SassCounts};
use crate::instances::{Instance, TensorInstruction};
use warptile_spec::record::{ImageRecord, RecordError};

/// Kernels and variants whose products wait for descriptors, which others do not. Without, masks by the copy engine are slower
/// (docs/notebook/wgmma-options.md); for the last two nothing was tried.
const WAITING: [(&str, &str); 5] = [
    ("wgmma_d128_192x64_w16_s4", "mask"),
    ("wgmma_d192_128x64_w12_s3", "mask"),
    ("wgmma_d256_128x64_w12_s2", "mask"),
    ("wgmma_d192_128x64_w12_s3", "tensors"),
    ("wgmma_d64_128x128_w12_s2", "blocks"),
];

fn is_known_to_wait(instance: &Instance) -> bool {
    let (kernel, variant) = (instance.kernel(), instance.variant.as_deref());
    // With or without the suffix of a trial.
    let is = |known: &(&str, &str)| kernel.starts_with(known.0) && variant == Some(known.1);
    WAITING.iter().any(is)
}

/// Everything the gates look at.
pub struct Facts {
    /// The compiler's log.
    pub log: LogReport,
    /// The image's record.
    pub record: Result<ImageRecord, RecordError>,
    /// True if the entry has machine code.
    pub has_entry: bool,
    /// Size of each parameter by the ELF's own account.
    pub parameter_sizes: Vec<u32>,
    /// Instructions; looked at where [`Instance::expectations`] asks for any.
    pub sass: SassCounts,
}

/// Every gate the image fails, in words: the reasons not to ship it.
pub fn violations(instance: &Instance, facts: &Facts) -> Vec<String> {
    let mut found = Vec::new();
    let (log, expected) = (&facts.log, instance.expectations);
    let warnings = log.warnings.iter();
    found.extend(warnings.map(|warning| format!("the compiler warns: {warning}")));
    // Numbered remarks of ptxas.
    let advisories = log.advisories.iter();
    found.extend(
        advisories.map(|remark| format!("ptxas did not compile what was asked for: {remark}")),
    );
    let (stores, loads, stack) = (log.spill_store_bytes, log.spill_load_bytes, log.stack_bytes);
    if expected.may_spill {
        // Asserts need registers, and are never timed.
    } else if stores > 0 || loads > 0 {
        found.push(format!(
            "{stores} bytes of spill stores, {loads} bytes of spill loads: use fewer registers or fewer warps"
        ));
    } else if stack > 0 {
        found.push(format!(
            "a stack frame of {stack} bytes: a local array is indexed by something the compiler cannot fold"
        ));
    }
    let entry = instance.entry();
    if !facts.has_entry {
        found.push(format!(
            "no entry function `{entry}`: name it WARPTILE_ENTRY"
        ));
    }
    let mut others = log.entries.clone();
    others.retain(|name| *name != entry);
    if !others.is_empty() {
        found.push(format!(
            "entry functions besides `{entry}`: {}",
            others.join(", ")
        ));
    }
    match &facts.record {
        Ok(record) => check_record(instance, facts, record, &mut found),
        Err(error) => found.push(error.to_string()),
    }
    let missing = match expected.tensor_instruction {
        TensorInstruction::Hmma if facts.sass.hmma == 0 => Some("HMMA"),
        TensorInstruction::Hgmma if facts.sass.hgmma == 0 => Some("HGMMA"),
        _ => None,
    };
    found.extend(missing.map(|name| {
        format!("no {name} in the machine code: the products do not run on tensor cores")
    }));
    let waiting = facts.sass.waiting_groups;
    if waiting > 0 && !is_known_to_wait(instance) {
        found.push(format!(
            "products wait for descriptors, with an R2UR for each of a group ({waiting} of them): ptxas has lost sight of what is the same for the whole warp"
        ));
    }
    if expected.setmaxnreg && facts.sass.usetmaxreg == 0 {
        found.push("no USETMAXREG in the machine code: setmaxnreg was ignored".to_owned());
    }
    found
}

/// The gates of what the record says: it must agree with the instance, with a parameter block that the host declares, and with the
/// machine code.
fn check_record(instance: &Instance, facts: &Facts, record: &ImageRecord, found: &mut Vec<String>) {
    let tile = instance.tiling.in_record(&record.tiling);
    let in_records =
        { record.tiling.fields().into_iter() }.chain([("element_bytes", record.element_bytes)]);
    let in_instances = tile.fields().map(|(_, number)| number);
    let in_instances = in_instances.into_iter().chain([instance.element.size()]);
    for ((field, in_record), in_instance) in in_records.zip(in_instances) {
        if in_record != in_instance {
            found.push(format!(
                "the record says {field} = {in_record}, instances.toml says {in_instance}"
            ));
        }
    }
    let (hash, bytes) = (record.abi_hash, record.param_bytes);
    if !record.takes_a_block() {
        found.push(format!(
            "takes no parameter block that this program declares: the record has {hash:#018x} and {bytes} bytes; \
             kernels/generated/base/abi.cuh was changed by hand"
        ));
    }
    if facts.parameter_sizes != [bytes] {
        found.push(format!(
            "the record says the parameter block has {bytes} bytes, the entry takes parameters of {:?} bytes",
            facts.parameter_sizes
        ));
    }
    // PTX is launched in order.
    let can_begin_early = !instance.target.ptx && instance.target.number >= 90;
    if can_begin_early && record.schedule.begins_early() && facts.sass.acqbulk == 0 {
        found.push(
            "no ACQBULK in the machine code: the launch begins before the one ahead has ended, and does not wait for it"
                .to_owned(),
        );
    }
    let needed = record
        .shared_bytes
        .saturating_add(facts.log.static_shared_bytes);
    let (target, limit) = (instance.target, instance.target.shared_memory_limit());
    if needed > limit {
        found.push(format!(
            "{needed} bytes of shared memory per CTA; {target} has {limit}"
        ));
    }
}
