mod support;
use data::*;
use datafusion_rmq::engine::{cpu::*, *};
use memory::*;
use std::sync::Arc;
use support::*;
use workload::*;
struct Share<T>(Values<T>);
// SAFETY: read only.
unsafe impl<T> Send for Share<T> {}
unsafe impl<T> Sync for Share<T> {}
impl AsRef<[u32]> for Share<f32> {
    fn as_ref(&self) -> &[u32] {
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len()) }
    }
}
impl AsRef<[u64]> for Share<i64> {
    fn as_ref(&self) -> &[u64] {
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len()) }
    }
}
fn median(v: &mut Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}
fn run<T: Cell, K: Key>(n: usize, build: impl Fn(Arc<Share<T>>) -> Arc<dyn RangeIndex<K>>) {
    let m = 1 << 20;
    let rounds: usize = std::env::var("ROUNDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(5);
    let datas = std::env::var("DATA").unwrap_or("uniform,increasing,walk".into());
    for data in Data::ALL {
        if !datas.contains(data.name()) {
            continue;
        }
        let mut v = Values::<T>::zeroed(n, Pages::Huge);
        data.fill(&mut v);
        let v = Arc::new(Share(v));
        let t0 = clock::thread_time();
        let index = build(v.clone());
        let tb = clock::thread_time() - t0;
        let (a, b) = two_positions(n, m);
        let qs: Vec<_> = Workload::ALL.iter().map(|w| w.queries(n, m)).collect();
        let mut out = vec![T::of(0.0); m];
        let mut keys = vec![K::MAX; m];
        let mut pos = vec![0i64; m];
        let mut bits = vec![0u64; m / 64];
        let mut t = vec![vec![]; 9];
        for round in 0..rounds + 1 {
            let mut rec = |i: usize, d: std::time::Duration| {
                if round > 0 {
                    t[i].push(d.as_nanos() as f64 / m as f64)
                }
            };
            rec(
                8,
                clock::timed(|| contenders::two_lines(&v.0, &a, &b, &mut out)),
            );
            for (i, (l, r)) in qs.iter().enumerate() {
                rec(
                    i,
                    clock::timed(|| {
                        index
                            .answer(
                                l,
                                r,
                                Answers {
                                    values: Some(&mut keys),
                                    positions: None,
                                    valid: &mut bits,
                                },
                            )
                            .unwrap()
                    }),
                );
                rec(
                    i + 4,
                    clock::timed(|| {
                        index
                            .answer(
                                l,
                                r,
                                Answers {
                                    values: None,
                                    positions: Some(&mut pos),
                                    valid: &mut bits,
                                },
                            )
                            .unwrap()
                    }),
                );
            }
        }
        let t: Vec<f64> = t.iter_mut().map(median).collect();
        let r = t[8];
        println!(
            "{} {:10} n=2^{} ref2 {:5.1}  build {:.2} GB/s  idx {:.4} B/val | value {} | pos {}",
            T::NAME,
            data.name(),
            n.ilog2(),
            r,
            (n * size_of::<T>()) as f64 / tb.as_nanos() as f64,
            index.index_bytes() as f64 / n as f64,
            (0..4)
                .map(|i| format!("{:5.1} ({:.2})", t[i], t[i] / r))
                .collect::<Vec<_>>()
                .join(" "),
            (4..8)
                .map(|i| format!("{:5.1} ({:.2})", t[i], t[i] / r))
                .collect::<Vec<_>>()
                .join(" ")
        );
    }
}
fn main() {
    let o = BuildOptions::default();
    let e = CpuEngine::new();
    for lg in std::env::var("LG")
        .unwrap_or("24,26".into())
        .split(',')
        .map(|s| s.parse::<u32>().unwrap())
    {
        let n = 1usize << lg;
        let ty = std::env::var("TY").unwrap_or("f32".into());
        if ty.contains("f32") {
            run::<f32, u32>(n, |c| {
                e.build_u32(Column::new(c, Encoding::float()), &o).unwrap()
            });
        }
        if ty.contains("i64") {
            run::<i64, u64>(n, |c| {
                e.build_u64(Column::new(c, Encoding::signed()), &o).unwrap()
            });
        }
    }
}
