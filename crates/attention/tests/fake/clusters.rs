//! Launches whose CTAs come in clusters: what they ask the driver for, and devices that hold few clusters or none.

use quickcheck::{TestResult, quickcheck};
use warptile::Error;
use warptile::kernels::Schedule;
use warptile::plan::Choice;
use warptile::spec::Call;
use warptile_check::Case;
use warptile_driver::Graph;
use warptile_driver::sys::CUresult;
use warptile_fake_cuda::FakeDriver;

use crate::{Buffers, gpu};

/// A problem of few tiles and few keys, for which an H200 has clusters.
fn call(seed: u64) -> Call {
    let pick = |shift: u32, of: &[usize]| of[(seed >> shift) as usize % of.len()];
    let kv_heads = pick(0, &[1, 2, 4]);
    let group = pick(4, &[1, 2, 4, 8]);
    let (heads, keys) = (kv_heads * group, 200 + pick(8, &[0, 7, 400, 824, 1800]));
    let mask = ["", "mask=causal"][pick(16, &[0, 1])];
    let queries = 1 + pick(20, &[0, 0, 0, 2]);
    let text = format!("b1 q{queries} k{keys} h{heads}/{kv_heads} d128 f16 {mask}");
    text.parse::<Case>().unwrap().call()
}

/// Finds out if the problem of a seed has a launch in clusters of 8, alone and in a graph, on a device that holds this many clusters;
/// `None` where the planner chooses another kernel.
fn launches_in_clusters(seed: u64, clusters: u32) -> Option<Result<(), String>> {
    let fake = FakeDriver::open();
    fake.set_clusters(clusters);
    let gpu = gpu(&fake);
    let call = call(seed);
    let problem = call.problem();
    let image = gpu.plan(problem, &Choice::Best).unwrap().image().unwrap();
    if image.schedule != Schedule::ClusterTile {
        return None;
    }
    let prepared = gpu.prepare(problem, &Choice::Best).unwrap();
    let chosen = prepared.plan().image().unwrap();
    let expected = match clusters {
        0 => Schedule::SharedKeys,
        _ => Schedule::ClusterTile,
    };
    if chosen.schedule != expected {
        return Some(Err(format!("{}: {:?}", chosen.name, chosen.schedule)));
    }
    if clusters == 0 {
        // A choice by name has no fallback.
        let by_name = Choice::Image(image.name.to_owned());
        let error = gpu.prepare(problem, &by_name).unwrap_err();
        let said = error.to_string();
        if !said.contains(image.kernel) || !said.contains("can hold none") {
            return Some(Err(said));
        }
    }
    let mut buffers = Buffers::new(gpu.stream(), &call);
    let mut launch = || prepared.launch(gpu.stream(), &call, &buffers.bindings());
    launch().unwrap();
    gpu.stream().synchronize().unwrap();
    let graph = Graph::capture(gpu.stream(), |_| launch()).unwrap();
    for _ in 0..2 {
        graph.launch(gpu.stream()).unwrap();
    }
    gpu.stream().synchronize().unwrap();
    let launched = fake.launches();
    let of_kernel = { launched.iter() }.filter(|launch| launch.name() == chosen.entry);
    let configs: Vec<_> = of_kernel
        .map(|launch| (launch.cluster, launch.grid, launch.programmatic))
        .collect();
    let shape = prepared.plan().steps()[0].shape(&call).unwrap();
    let cluster = if clusters == 0 { [0; 3] } else { [8, 1, 1] };
    let clusters = shape.splits;
    let wanted = (cluster, [shape.grid / clusters, clusters, 1], 1);
    drop((graph, buffers, prepared, gpu));
    fake.assert_clean_but_for(fake.reclaimed());
    Some(match configs == [wanted; 3] {
        true => Ok(()),
        false => Err(format!("{configs:?}, not {wanted:?}")),
    })
}

quickcheck! {
    fn a_tile_a_cluster_or_none(seed: u64, clusters: u8) -> TestResult {
        // Every fourth device holds none.
        match launches_in_clusters(seed, u32::from(clusters % 4) * 11) {
            None => TestResult::discard(),
            Some(Ok(())) => TestResult::passed(),
            Some(Err(why)) => TestResult::error(why),
        }
    }
}

/// Which call fails makes no difference: nothing is launched, the error says what was to be, and the next launch is as if nothing had
/// been.
#[test]
fn a_cluster_launch_that_fails_names_its_kernel() {
    let fake = FakeDriver::open();
    let gpu = gpu(&fake);
    let choice = Choice::Best;
    let in_clusters = |call: &Call| {
        let plan = gpu.plan(call.problem(), &choice).unwrap();
        plan.image().unwrap().schedule == Schedule::ClusterTile
    };
    let call = (0..).map(call).find(in_clusters).unwrap();
    let fail = |symbol: &str| fake.fail(Some(symbol), 1, CUresult::ERROR_INVALID_CLUSTER_SIZE.0);
    fail("cuOccupancyMaxActiveClusters");
    let error = gpu.prepare(call.problem(), &choice).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("asking for the occupancy of kernel decode"),
        "{error}"
    );
    let prepared = gpu.prepare(call.problem(), &choice).unwrap();
    let image = prepared.plan().image().unwrap();
    assert_eq!(image.schedule, Schedule::ClusterTile);
    let mut buffers = Buffers::new(gpu.stream(), &call);
    fail("cuLaunchKernelEx");
    let error = { prepared.launch(gpu.stream(), &call, &buffers.bindings()) }.unwrap_err();
    let said = error.to_string();
    assert!(
        said.contains(image.name) && said.contains("CLUSTER_SIZE"),
        "{said}"
    );
    gpu.stream().synchronize().unwrap();
    assert!(fake.launches().is_empty());
    prepared
        .launch(gpu.stream(), &call, &buffers.bindings())
        .unwrap();
    gpu.stream().synchronize().unwrap();
    assert_eq!(fake.launches()[0].cluster, [8, 1, 1]);
}

#[test]
fn clusters_that_a_device_cannot_hold_are_an_error_by_name() {
    let fake = FakeDriver::open();
    fake.set_clusters(0);
    let gpu = gpu(&fake);
    let case: Case = "b1 q1 k1024 h32/4 d128 f16".parse().unwrap();
    let plan = { gpu.plan(case.call().problem(), &Choice::Best) }.unwrap();
    let image = plan.image().unwrap();
    assert_eq!(image.schedule, Schedule::ClusterTile);
    let error = gpu.load(plan).unwrap_err();
    assert!(
        matches!(error, Error::Clusters { image: said, ctas: 8 } if said == image.name),
        "{error}"
    );
}
