//! Results on standard output, or in a pager.

use std::fmt::Write as _;
use std::io::{self, BufWriter, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::instant::Instant;
use datafusion::common::{Result, exec_datafusion_err};
use datafusion::config;
use datafusion_cli::print_format::PrintFormat;
use datafusion_cli::print_options::{MaxRows, PrintOptions};
use datafusion_rmq::parts::Stop;

use crate::progress::Watch;

/// Whether a table has a column a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expanded {
    On,
    Off,
    /// Where the table is wider than the terminal.
    Auto,
}

/// The columns and rows of the terminal that shows results.
pub type Terminal = (usize, usize);

/// How the rows of a result are printed.
pub struct Printer<'a> {
    pub print: &'a PrintOptions,
    pub format: &'a config::FormatOptions,
    pub expanded: Expanded,
    /// There is one at the prompt.
    pub terminal: Option<Terminal>,
    pub watch: &'a Watch,
    pub stop: &'a Stop,
}

impl Printer<'_> {
    /// Prints rows, the first of `count`, and what was spent on them since `begin`.
    ///
    /// # Errors
    /// If a value has no text, or standard output fails.
    pub fn print(
        &self,
        schema: &SchemaRef,
        rows: &[RecordBatch],
        count: usize,
        begin: Instant,
    ) -> Result<()> {
        // Without the time in which a user reads.
        let elapsed = begin.elapsed();
        let is_table = matches!(
            self.print.format,
            PrintFormat::Table | PrintFormat::Automatic
        );
        let mut out = BufWriter::with_capacity(1 << 16, Output(self.stop));
        if is_table {
            self.show(&self.table(schema, rows)?, &mut out)?;
        } else {
            let print = &self.print.format;
            let all = MaxRows::Unlimited;
            print.print_batches(&mut out, Arc::clone(schema), rows, all, true, self.format)?;
        }
        out.flush()?;
        // A table that is created has rows, but the statement returns none.
        let returns_rows = !schema.fields().is_empty();
        if let MaxRows::Limited(shown) = self.print.maxrows
            && is_table
            && returns_rows
            && shown < count
            && !self.print.quiet
        {
            writeln!(
                out,
                "First {shown} displayed: \\pset maxrows N shows N, and --maxrows, too."
            )?;
            out.flush()?;
        }
        // DataFusion's shell prints the rest, and what object stores were asked, after no rows of a format without a
        // header.
        let rest = PrintOptions {
            format: PrintFormat::Csv,
            ..self.print.clone()
        };
        let begin = Instant::now().checked_sub(elapsed).unwrap_or(begin);
        rest.print_batches(Arc::clone(schema), &[], begin, count, self.format)
    }

    /// The text of a table.
    fn table(&self, schema: &SchemaRef, rows: &[RecordBatch]) -> Result<String> {
        if self.expanded == Expanded::On {
            return self.records(rows);
        }
        let mut text = vec![];
        let maxrows = self.print.maxrows;
        PrintFormat::Table.print_batches(
            &mut text,
            Arc::clone(schema),
            rows,
            maxrows,
            true,
            self.format,
        )?;
        let text =
            String::from_utf8(text).map_err(|e| exec_datafusion_err!("a table is no text: {e}"))?;
        let is_wide = self
            .terminal
            .is_some_and(|(columns, _)| width(&text) > columns);
        if self.expanded == Expanded::Auto && is_wide {
            self.records(rows)
        } else {
            Ok(text)
        }
    }

    /// The rows with a column a line.
    fn records(&self, rows: &[RecordBatch]) -> Result<String> {
        let options: FormatOptions = self.format.try_into()?;
        let most = match self.print.maxrows {
            MaxRows::Limited(rows) => rows,
            MaxRows::Unlimited => usize::MAX,
        };
        let (mut text, mut number) = (String::new(), 0);
        for batch in rows {
            let schema = batch.schema();
            let names = schema.fields().iter().map(|field| field.name());
            let widest = names.clone().map(|name| name.chars().count()).max();
            let widest = widest.unwrap_or(0);
            // Lines of one value are below one another.
            let next_line = format!("\n{:widest$} | ", "");
            let columns = batch.columns().iter();
            let columns = columns.map(|column| ArrayFormatter::try_new(column, &options));
            let columns = columns.collect::<Result<Vec<_>, _>>()?;
            for row in 0..batch.num_rows().min(most - number) {
                number += 1;
                // Writing to a string does not fail.
                let _ = writeln!(text, "-[ row {number} ]{}", "-".repeat(20));
                for (name, column) in names.clone().zip(&columns) {
                    let value = column.value(row).try_to_string()?;
                    let value = value.replace('\n', &next_line);
                    let _ = writeln!(text, "{name:widest$} | {value}");
                }
            }
        }
        Ok(text)
    }

    /// Writes a text, through the program that PAGER names if it does not fit the terminal.
    fn show(&self, text: &str, out: &mut impl Write) -> Result<()> {
        let fits = self.terminal.is_none_or(|(columns, rows)| {
            // The lines after a result and the prompt follow.
            width(text) <= columns && text.lines().count() + 4 <= rows
        });
        let pager = std::env::var("PAGER")
            .ok()
            .filter(|pager| !pager.is_empty());
        if let Some(pager) = pager.filter(|_| !fits) {
            self.watch.set_paging(true);
            let is_paged = page(&pager, text);
            self.watch.set_paging(false);
            if is_paged {
                return Ok(());
            }
        }
        Ok(out.write_all(text.as_bytes())?)
    }
}

/// The characters of the longest line.
fn width(text: &str) -> usize {
    let widths = text.lines().map(|line| line.chars().count());
    widths.max().unwrap_or(0)
}

/// Whether a pager was started and has shown a text.
fn page(pager: &str, text: &str) -> bool {
    let (shell, option) = if cfg!(windows) {
        ("cmd", "/C")
    } else {
        ("sh", "-c")
    };
    let mut command = Command::new(shell);
    command.args([option, pager]).stdin(Stdio::piped());
    if std::env::var_os("LESS").is_none() {
        // Long lines are cut, and scrolled to.
        command.env("LESS", "FRSX");
    }
    let Ok(mut child) = command.spawn() else {
        return false;
    };
    if let Some(mut stdin) = child.stdin.take() {
        // One that ends before it has read all is done.
        let _ = stdin.write_all(text.as_bytes());
    }
    child.wait().is_ok_and(|status| status.code() != Some(127))
}

/// Standard output, until the statement is cancelled. It is not locked: what is left behind may write for long.
struct Output<'a>(&'a Stop);

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.is_requested() {
            return Err(io::Error::other("the statement was cancelled"));
        }
        io::stdout().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
    }
}
