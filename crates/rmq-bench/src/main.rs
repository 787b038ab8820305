//! `rmq-bench`: the comparison of the GPU-RMQ paper (Kreis et al., 2026) as one command, with our engines in it.
//!
//! `docs/benchmarks.md` says how to run it and shows what it found.

#![warn(clippy::pedantic)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::many_single_char_names,
    clippy::single_match_else,
    reason = "measurements are no place for checked conversions; `n`, `l` and `r` are the paper's names; two arms read as what they are"
)]

mod args;
mod ask;
mod clock;
mod cpu;
mod crossover;
mod data;
mod gpu;
mod keys;
mod lab;
mod plots;
mod progress;
mod random;
mod record;
mod report;
mod run;
mod table;
mod trip;
mod workload;

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::process::ExitCode;

use clap::Parser;

use args::Args;
use run::Run;

fn main() -> ExitCode {
    match measure(Args::parse().complete()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("rmq-bench: {error}");
            ExitCode::from(2)
        }
    }
}

/// Measures, reports, and tells whether all answers were right.
fn measure(args: Args) -> Result<bool, Box<dyn Error>> {
    fs::create_dir_all(&args.out)
        .map_err(|error| format!("{} can't be made: {error}", args.out.display()))?;
    plots::prepare()?;
    let (out, markdown) = (args.out.clone(), args.markdown);
    let run = Run::of(args)?;

    let mut tables = report::tables(&run.records);
    tables.extend(run.tables);
    let mut text = format!("{}\n", run.machine.join("  \n"));
    for table in &tables {
        let _ = write!(text, "\n{}", table.markdown());
    }
    fs::write(out.join("report.md"), &text)?;
    record::write_csv(&run.records, &out.join("results.csv"))?;
    for (name, plot) in report::plots(&run.records) {
        plots::write(&plot, &out, &name)?;
    }
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
    eprintln!("results.csv, report.md and plots are in {}", out.display());
    Ok(wrong == 0)
}
