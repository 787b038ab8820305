//! Tables of text.

use std::fmt;

/// A table whose first column names its rows.
#[derive(Debug, Clone, Default)]
pub struct Table {
    title: String,
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table without rows. The first header is that of the names.
    pub fn new(title: impl Into<String>, header: impl IntoIterator<Item = String>) -> Self {
        Self {
            title: title.into(),
            header: header.into_iter().collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn row(&mut self, name: impl Into<String>, cells: impl IntoIterator<Item = String>) {
        let mut row = vec![name.into()];
        row.extend(cells);
        self.rows.push(row);
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn widths(&self) -> Vec<usize> {
        let lines = || std::iter::once(&self.header).chain(&self.rows);
        let width = |column: usize| {
            let cells = lines().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        (0..self.header.len()).map(width).collect()
    }

    /// Formats the table as Markdown, its columns aligned.
    #[must_use]
    pub fn markdown(&self) -> String {
        let widths = self.widths();
        let mut text = format!("### {}\n\n", self.title);
        text += &line(&self.header, &widths, "| ", " | ", " |");
        let dashes = widths
            .iter()
            .enumerate()
            .map(|(column, width)| match column {
                0 => "-".repeat((*width).max(3)),
                _ => "-".repeat((*width).max(3) - 1) + ":",
            });
        let dashes: Vec<_> = dashes.collect();
        text += &line(&dashes, &widths, "| ", " | ", " |");
        for row in &self.rows {
            text += &line(row, &widths, "| ", " | ", " |");
        }
        text
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        writeln!(f, "{}", self.title)?;
        write!(f, "{}", line(&self.header, &widths, "  ", "  ", ""))?;
        for row in &self.rows {
            write!(f, "{}", line(row, &widths, "  ", "  ", ""))?;
        }
        Ok(())
    }
}

fn line(cells: &[String], widths: &[usize], begin: &str, between: &str, end: &str) -> String {
    let cells = cells.iter().zip(widths).enumerate();
    let cells: Vec<_> = cells
        .map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        })
        .collect();
    format!("{begin}{}{end}\n", cells.join(between))
}

/// Formats a number with three significant digits.
#[must_use]
pub fn three_digits(number: f64) -> String {
    match number.abs() {
        size if size >= 100.0 => format!("{number:.0}"),
        size if size >= 10.0 => format!("{number:.1}"),
        size if size >= 1.0 => format!("{number:.2}"),
        size if size >= 0.1 => format!("{number:.3}"),
        _ => format!("{number:.4}"),
    }
}

/// Formats a power of two, as `2^20`.
#[must_use]
pub fn power_of_two(exponent: u32) -> String {
    format!("2^{exponent}")
}
