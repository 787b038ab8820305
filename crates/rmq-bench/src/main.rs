//! `rmq-bench`: the comparison of the GPU-RMQ paper (Kreis et al., 2026) as one command, with our engines in it.
//!
//! `docs/benchmarks.md` describes how to run it and shows results.

#![warn(clippy::pedantic)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::many_single_char_names,
    clippy::must_use_candidate,
    clippy::single_match_else,
    clippy::unchecked_time_subtraction,
    reason = "sizes and times are far from every limit; `n`, `l` and `r` are the paper's names"
)]

mod args;
mod cpu;
mod gpu;
mod hrmq;
mod kernels;
mod lab;
#[cfg(feature = "rt")]
mod ray;
mod reads;
mod record;
mod report;
mod run;
mod sections;
mod succinct;

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::process::ExitCode;

use clap::Parser;

use crate::args::Args;

fn main() -> ExitCode {
    match compare(Args::parse().with_defaults()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("rmq-bench: {error}");
            ExitCode::from(2)
        }
    }
}

/// Measures and writes the results; returns whether all answers were right.
fn compare(args: Args) -> Result<bool, Box<dyn Error>> {
    let (out, markdown) = (args.out.clone(), args.markdown);
    fs::create_dir_all(&out).map_err(|error| format!("can't create {}: {error}", out.display()))?;
    let run = sections::measure(args)?;

    run.save()?;
    let mut tables = report::tables(&run.records);
    tables.extend(run.tables);
    let mut text = format!("{}\n", run.machine.join("  \n"));
    for table in &tables {
        let _ = write!(text, "\n{}", table.markdown());
    }
    fs::write(out.join("report.md"), &text)?;
    if markdown {
        print!("{text}");
    } else {
        println!("{}", run.machine.join("\n"));
        for table in &tables {
            print!("\n{table}");
        }
    }
    let wrong: u64 = run.records.iter().map(|record| record.wrong).sum();
    for record in run.records.iter().filter(|record| record.wrong > 0) {
        eprintln!(
            "WRONG: {}: {} answers differ: {}, n = 2^{}",
            record.contender,
            record.wrong,
            record.case.title(),
            record.case.n
        );
    }
    let out = out.display();
    eprintln!(
        "results.csv and report.md are in {out}; `python3 crates/rmq-bench/figures {out} --out {out}` draws the figures"
    );
    Ok(wrong == 0)
}
