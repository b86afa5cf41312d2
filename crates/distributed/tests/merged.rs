//! Results of keys that stay with ranks on the CPU.

use warptile::{Attention, Backend, KvCache};
use warptile_distributed::{Group, ShardedCache};

#[path = "common/dealt.rs"]
mod dealt;

use dealt::{builder, data};

#[test]
fn a_dealt_cache_is_one_cache() {
    // No merge takes more than 32 parts.
    for ranks in [2, 3, 5, 32, 33, 65] {
        let group = Group::local(vec![Backend::cpu(); ranks]).unwrap();
        dealt::a_dealt_cache_is_one_cache::<f32>(&group, 1e-5);
    }
}

#[test]
fn a_step_that_a_rank_has_no_pages_for_grows_nothing() {
    let backend = Backend::cpu();
    let group = Group::local([backend.clone(), backend.clone()]).unwrap();
    let mut cache = group.cache(&builder::<f32>().pages(2)).unwrap();
    let sequence = cache.allocate();
    cache.step(&[(sequence, 5)]).unwrap();
    // Rank 0 would need a third page.
    let error = cache.step(&[(sequence, 12)]).unwrap_err().to_string();
    assert!(error.starts_with("rank 0: "), "{error}");
    assert_eq!(cache.len(sequence), Some(5));
    let other = cache.allocate();
    cache.step(&[(sequence, 11)]).unwrap();
    assert_eq!(cache.len(sequence), Some(16));
    let unknown = group.cache(&builder::<f32>()).unwrap().allocate();
    assert!(cache.step(&[(unknown, 1)]).is_err());
    let x = backend.tensor(&data::<f32>(16, 0.0), [1, 1, 2, 8]).unwrap();
    let none = backend.tensor::<f32>(&[], [1, 0, 2, 8]).unwrap();
    let appended = |cache: &mut ShardedCache<'_, f32>, x| {
        let error = cache.append(0, x, x).unwrap_err();
        error.to_string()
    };
    for x in [&x, &none] {
        let error = appended(&mut cache, x);
        assert!(
            error.starts_with("rank 0: the cache has no step"),
            "{error}"
        );
    }
    cache.step(&[(other, 0)]).unwrap();
    let error = appended(&mut cache, &x);
    assert!(
        error.starts_with("rank 0: k must be dense, with"),
        "{error}"
    );
    let refused = |attention: Attention| {
        let error = cache.attend(0, &attention, &x).unwrap_err();
        error.to_string()
    };
    assert!(refused(Attention::new()).contains("one new row"));
}

#[test]
fn a_step_of_too_many_rows_is_refused_at_once() {
    let group = Group::local(vec![Backend::cpu(); 2]).unwrap();
    let mut cache = group.cache(&builder::<f32>()).unwrap();
    let sequence = cache.allocate();
    for rows in [3, 0, usize::MAX, usize::MAX - 4, 1 << 40, 10] {
        let before = cache.len(sequence).unwrap();
        let stepped = cache
            .step(&[(sequence, rows)])
            .map_err(|error| error.to_string());
        if rows > 10 {
            let error = stepped.unwrap_err();
            assert!(error.starts_with("rank 0: "), "{error}");
            assert_eq!(cache.len(sequence), Some(before));
        } else {
            stepped.unwrap();
        }
    }
    assert_eq!(cache.len(sequence), Some(13));
}

#[test]
fn wrong_parts_name_their_rank() {
    let backend = Backend::cpu();
    let group = Group::local([backend.clone(), backend.clone()]).unwrap();
    let x = backend.tensor(&data::<f32>(64, 0.0), [1, 4, 2, 8]).unwrap();
    let part = |attention: Attention| attention.forward(&x, (&x, &x)).unwrap();
    let text = |parts: &[_]| group.merge(parts).unwrap_err().to_string();
    assert_eq!(
        text(&[part(Attention::new())]),
        "rank 1: 1 parts for 2 ranks"
    );
    let parts = [part(Attention::new()), part(Attention::new().without_lse())];
    assert_eq!(
        text(&parts),
        "rank 1: its output has no lse: it must not be turned off"
    );
    let few = x.rows(0..3).unwrap();
    let few = Attention::new().forward(&few, (&x, &x)).unwrap();
    let error = text(&[part(Attention::new()), few]);
    assert!(error.starts_with("rank 0: parts[1]"), "{error}");
}

#[test]
fn a_step_that_no_rank_can_compute_names_the_first() {
    let group = Group::local(vec![Backend::cpu(); 3]).unwrap();
    let home = &group.backends()[0];
    let mut cache = group.cache(&KvCache::builder(2, 64).pages(2)).unwrap();
    let sequence = cache.allocate();
    cache.step(&[(sequence, 1)]).unwrap();
    let kv = home.tensor(&[0.5_f32; 2 * 64], [1, 1, 2, 64]).unwrap();
    cache.append(0, &kv, &kv).unwrap();
    let q = home.tensor(&[0.5_f32; 3 * 64], [1, 1, 3, 64]).unwrap();
    let refused = cache.attend(0, &Attention::new(), &q);
    let error = refused.map(drop).unwrap_err().to_string();
    assert!(error.starts_with("rank 0: q has 3 heads"), "{error}");
}
