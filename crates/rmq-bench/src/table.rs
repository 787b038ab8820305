//! Tables of text.

use std::fmt;

/// A table whose first column names its rows.
#[derive(Debug, Clone, Default)]
pub struct Table {
    pub title: String,
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(title: impl Into<String>, head: impl IntoIterator<Item = String>) -> Self {
        Self {
            title: title.into(),
            head: head.into_iter().collect(),
            rows: Vec::new(),
        }
    }

    pub fn row(&mut self, name: impl Into<String>, cells: impl IntoIterator<Item = String>) {
        let mut row = vec![name.into()];
        row.extend(cells);
        self.rows.push(row);
    }

    fn widths(&self) -> Vec<usize> {
        let lines = || std::iter::once(&self.head).chain(&self.rows);
        let width = |at: usize| {
            let cells = lines().filter_map(|line| line.get(at));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        (0..self.head.len()).map(width).collect()
    }

    /// As Markdown, its columns aligned.
    pub fn markdown(&self) -> String {
        let widths = self.widths();
        let mut text = format!("### {}\n\n", self.title);
        text += &line(&self.head, &widths, "| ", " | ", " |");
        let dashes = widths.iter().enumerate().map(|(at, width)| match at {
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
        write!(f, "{}", line(&self.head, &widths, "  ", "  ", ""))?;
        for row in &self.rows {
            write!(f, "{}", line(row, &widths, "  ", "  ", ""))?;
        }
        Ok(())
    }
}

fn line(cells: &[String], widths: &[usize], begin: &str, between: &str, end: &str) -> String {
    let cells = cells.iter().zip(widths).enumerate();
    let cells: Vec<_> = cells
        .map(|(at, (cell, width))| match at {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        })
        .collect();
    format!("{begin}{}{end}\n", cells.join(between))
}

/// Three digits that count.
pub fn short(number: f64) -> String {
    match number.abs() {
        size if size >= 100.0 => format!("{number:.0}"),
        size if size >= 10.0 => format!("{number:.1}"),
        size if size >= 1.0 => format!("{number:.2}"),
        size if size >= 0.1 => format!("{number:.3}"),
        _ => format!("{number:.4}"),
    }
}

/// `2^20`.
pub fn power(n: u32) -> String {
    format!("2^{n}")
}
