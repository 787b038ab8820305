//! What Tab completes at the prompt: commands, keywords, tables, columns, functions and files.

use datafusion::common::Result;
use datafusion::prelude::SessionContext;
use rustyline::Context;
use rustyline::completion::{Completer as _, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;

use crate::commands::COMMANDS;
use crate::functions::functions;
use crate::keywords::KEYWORDS;

/// Words after which a table is expected.
const BEFORE_TABLES: [&str; 6] = ["from", "join", "into", "table", "describe", "update"];

/// Words after which an option is expected.
const BEFORE_OPTIONS: [&str; 3] = ["set", "show", "reset"];

/// The names that a session knows.
#[derive(Debug, Default)]
pub struct Names {
    tables: Vec<Table>,
    functions: Vec<String>,
    /// Functions that are called in FROM.
    table_functions: Vec<String>,
    options: Vec<String>,
}

#[derive(Debug)]
struct Table {
    name: String,
    columns: Vec<String>,
}

impl Names {
    /// Reads the names of tables, their columns, and functions.
    ///
    /// # Errors
    /// If a catalog cannot be read.
    pub async fn of(ctx: &SessionContext) -> Result<Self> {
        let options = ctx.copied_config();
        let default = &options.options().catalog.default_schema;
        let mut tables = vec![];
        let catalog = ctx.catalog(&options.options().catalog.default_catalog);
        for schema_name in catalog.iter().flat_map(|catalog| catalog.schema_names()) {
            let schema = catalog
                .as_ref()
                .and_then(|catalog| catalog.schema(&schema_name));
            let Some(schema) = schema.filter(|_| schema_name != "information_schema") else {
                continue;
            };
            for table_name in schema.table_names() {
                let columns = match schema.table(&table_name).await? {
                    Some(table) => table
                        .schema()
                        .fields()
                        .iter()
                        .map(|f| quoted(f.name()))
                        .collect(),
                    None => continue,
                };
                let name = if schema_name == *default {
                    quoted(&table_name)
                } else {
                    format!("{}.{}", quoted(&schema_name), quoted(&table_name))
                };
                tables.push(Table { name, columns });
            }
        }
        tables.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let state = ctx.state();
        let mut table_functions: Vec<String> = state.table_functions().keys().cloned().collect();
        table_functions.sort_unstable();
        let entries = options.options().entries();
        Ok(Self {
            tables,
            functions: functions(ctx),
            table_functions,
            options: entries.into_iter().map(|entry| entry.key).collect(),
        })
    }

    /// What the last word of a text can be, and where that word begins.
    fn candidates(&self, text: &str) -> (usize, Vec<String>) {
        if let Some(command) = text.strip_prefix('\\') {
            return self.command_candidates(text, command);
        }
        let start = word_start(text);
        let word = &text[start..];
        let before = text[..start].trim_end();
        let last = &before[word_start(before)..];
        let is_first = |word: &str| {
            let before = before[..before.len() - word.len()].trim_end();
            before.is_empty() || before.ends_with(';')
        };
        let is_before_options = |keyword: &&str| last.eq_ignore_ascii_case(keyword);
        if BEFORE_OPTIONS.iter().any(is_before_options) && is_first(last) {
            // The many of DataFusion only once they are asked for.
            let asked = |name: &&String| !word.is_empty() || name.starts_with("rmq.");
            let options = self.options.iter().filter(asked);
            let found: Vec<String> = options
                .filter(|name| begins_with(name, word))
                .cloned()
                .collect();
            if !found.is_empty() {
                return (start, found);
            }
        }
        if let Some((qualifier, prefix)) = word.rsplit_once('.') {
            let columns = self.columns_of(qualifier, text);
            let found = columns
                .filter(|column| begins_with(column, prefix))
                .cloned();
            return (start + qualifier.len() + 1, unique(found.collect()));
        }
        if BEFORE_TABLES
            .iter()
            .any(|keyword| last.eq_ignore_ascii_case(keyword))
        {
            let tables = self.tables.iter().map(|table| table.name.clone());
            let calls = ["from", "join"]
                .iter()
                .any(|k| last.eq_ignore_ascii_case(k));
            let calls = self.table_functions.iter().filter(|_| calls);
            let all = tables.chain(calls.map(|name| format!("{name}(")));
            return (start, all.filter(|name| begins_with(name, word)).collect());
        }
        let named: Vec<&Table> = self
            .tables
            .iter()
            .filter(|table| names(text, &table.name))
            .collect();
        let tables: Vec<&Table> = if named.is_empty() {
            self.tables.iter().collect()
        } else {
            named
        };
        let columns = tables.iter().flat_map(|table| &table.columns).cloned();
        let mut found: Vec<String> = columns.filter(|name| begins_with(name, word)).collect();
        if !word.is_empty() {
            let names = self.tables.iter().map(|table| table.name.clone());
            let calls = self.functions.iter().map(|name| format!("{name}("));
            let is_upper = !word.chars().any(char::is_lowercase);
            let keywords = KEYWORDS.iter().map(|keyword| {
                if is_upper {
                    (*keyword).to_string()
                } else {
                    keyword.to_lowercase()
                }
            });
            let more = names.chain(calls).chain(keywords);
            found.extend(more.filter(|name| begins_with(name, word)));
        }
        (start, unique(found))
    }

    /// As [`Self::candidates`], of a text that ends within a string which is an argument of a range function: tables
    /// and columns. `None` if it does not, or nothing fits.
    fn argument_candidates(&self, text: &str) -> Option<(usize, Vec<String>)> {
        let begin = text.rfind('\'')? + 1;
        let name = called(&text[..begin - 1])?;
        if !name.to_lowercase().starts_with("range_") {
            return None;
        }
        let inner = &text[begin..];
        let start = begin + word_start(inner);
        let word = &text[start..];
        let (start, found) = match word.rsplit_once('.') {
            Some((qualifier, prefix)) => {
                let columns = self.columns_of(qualifier, text);
                let found = columns.filter(|column| begins_with(column, prefix));
                (start + qualifier.len() + 1, found.cloned().collect())
            }
            None => {
                let tables = self.tables.iter();
                let columns = tables.clone().filter(|table| names(text, &table.name));
                let columns = columns.flat_map(|table| &table.columns);
                let all = tables.map(|table| &table.name).chain(columns);
                let found = all.filter(|name| begins_with(name, word)).cloned();
                (start, unique(found.collect()))
            }
        };
        (!found.is_empty()).then_some((start, found))
    }

    fn command_candidates(&self, text: &str, command: &str) -> (usize, Vec<String>) {
        let Some((name, _)) = command.split_once(' ') else {
            let names = COMMANDS
                .iter()
                .filter_map(|(usage, _)| usage.split(' ').next());
            let names = names
                .filter(|name| name.starts_with(text))
                .map(str::to_string);
            return (0, unique(names.collect()));
        };
        let start = text.rfind(' ').map_or(0, |space| space + 1);
        let words: Vec<String> = match name {
            "d" => self.tables.iter().map(|table| table.name.clone()).collect(),
            "h" | "df" => self.functions.clone(),
            "timing" => ["on", "off"].map(str::to_string).to_vec(),
            "x" => ["on", "off", "auto"].map(str::to_string).to_vec(),
            "pset" => [
                "format",
                "null",
                "maxrows",
                "csv",
                "tsv",
                "table",
                "json",
                "nd-json",
                "automatic",
            ]
            .map(str::to_string)
            .to_vec(),
            _ => vec![],
        };
        let word = &text[start..];
        (
            start,
            words
                .into_iter()
                .filter(|name| begins_with(name, word))
                .collect(),
        )
    }

    /// The columns of a table, or of the table with this alias in the text.
    fn columns_of(&self, qualifier: &str, text: &str) -> impl Iterator<Item = &String> {
        let words: Vec<&str> = text
            .split(|c: char| !is_of_word(c))
            .filter(|word| !word.is_empty() && !word.eq_ignore_ascii_case("as"))
            .collect();
        let is_named = move |table: &&Table| {
            let alias = words.windows(2).any(|pair| {
                pair[0].eq_ignore_ascii_case(&table.name) && pair[1].eq_ignore_ascii_case(qualifier)
            });
            table.name.eq_ignore_ascii_case(qualifier) || alias
        };
        let tables: Vec<&Table> = self.tables.iter().filter(is_named).collect();
        tables.into_iter().flat_map(|table| &table.columns)
    }
}

/// A name as SQL writes it.
fn quoted(name: &str) -> String {
    let is_plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if is_plain {
        name.to_string()
    } else {
        format!("\"{}\"", name.replace('"', "\"\""))
    }
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '.' | '"')
}

/// Where the last word of a text begins.
fn word_start(text: &str) -> usize {
    let end = text.char_indices().rev().find(|(_, c)| !is_of_word(*c));
    end.map_or(0, |(index, c)| index + c.len_utf8())
}

fn begins_with(name: &str, prefix: &str) -> bool {
    let name = name.trim_start_matches('"').to_lowercase();
    name.starts_with(&prefix.trim_start_matches('"').to_lowercase())
}

/// Whether a text has this name as a word.
fn names(text: &str, name: &str) -> bool {
    text.split(|c: char| !is_of_word(c))
        .any(|word| word.eq_ignore_ascii_case(name))
}

/// The names in their order, each once.
fn unique(names: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::HashSet::new();
    names
        .into_iter()
        .filter(|name| seen.insert(name.clone()))
        .collect()
}

/// Whether the text ends within a string, such as the name of a file.
fn is_in_string(text: &str) -> bool {
    text.matches('\'').count() % 2 == 1
}

/// The function among whose arguments a text ends.
fn called(text: &str) -> Option<&str> {
    let (mut open, mut is_in_string) = (vec![], false);
    for (i, c) in text.char_indices() {
        match c {
            '\'' => is_in_string = !is_in_string,
            '(' if !is_in_string => open.push(i),
            ')' if !is_in_string => drop(open.pop()),
            _ => {}
        }
    }
    let before = &text[..open.pop()?];
    Some(&before[word_start(before)..])
}

impl Names {
    /// What the word at a position of a line can be, which goes on after the text `before` it.
    ///
    /// # Errors
    /// If a folder cannot be read.
    pub fn complete(
        &self,
        before: &str,
        line: &str,
        pos: usize,
        ctx: &Context<'_>,
    ) -> Result<(usize, Vec<Pair>), ReadlineError> {
        let text = format!("{before}{}", &line[..pos]);
        let (start, found) = if is_in_string(&text) {
            match self.argument_candidates(&text) {
                Some(found) => found,
                None => return FilenameCompleter::new().complete(line, pos, ctx),
            }
        } else if line.starts_with("\\i ") {
            return FilenameCompleter::new().complete(line, pos, ctx);
        } else if line.starts_with('\\') {
            let (start, found) = self.candidates(&line[..pos]);
            (before.len() + start, found)
        } else {
            self.candidates(&text)
        };
        let pair = |name: String| Pair {
            display: name.clone(),
            replacement: name,
        };
        let found = found.into_iter().map(pair).collect();
        Ok((start.saturating_sub(before.len()), found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        let table = |name: &str, columns: &[&str]| Table {
            name: name.to_string(),
            columns: columns.iter().map(ToString::to_string).collect(),
        };
        Names {
            tables: vec![
                table("prices", &["sym", "ts", "close"]),
                table("trades", &["id", "sym", "\"Size\""]),
            ],
            functions: ["range_max", "range_min", "sum"]
                .map(str::to_string)
                .to_vec(),
            table_functions: ["range_join", "rmq_indexes"].map(str::to_string).to_vec(),
            options: [
                "datafusion.execution.batch_size",
                "rmq.engine",
                "rmq.range_joins",
            ]
            .map(str::to_string)
            .to_vec(),
        }
    }

    #[track_caller]
    fn completes(text: &str, expected: &[&str]) {
        assert_eq!(names().candidates(text).1, expected, "{text}");
    }

    #[test]
    fn the_last_word_is_completed() {
        completes(
            "SELECT * FROM ",
            &["prices", "trades", "range_join(", "rmq_indexes("],
        );
        completes("SELECT * FROM rm", &["rmq_indexes("]);
        completes("INSERT INTO r", &[]);
        completes("SELECT * FROM trades QUAL", &["QUALIFY"]);
        completes(
            "with r",
            &[
                "range_max(",
                "range_min(",
                "range",
                "recursive",
                "replace",
                "right",
                "row",
                "rows",
            ],
        );
        completes("SELECT * FROM tr", &["trades"]);
        completes("sel", &["select"]);
        completes("SEL", &["SELECT"]);
        completes("SELECT range_mi", &["range_min("]);
        completes("SELECT t.", &[]);
        completes(
            "SELECT * FROM trades AS t WHERE t.",
            &["id", "sym", "\"Size\""],
        );
        completes("SELECT * FROM trades t JOIN prices p ON p.s", &["sym"]);
        completes("SELECT prices.c", &["close"]);
        completes("SELECT * FROM trades WHERE si", &["\"Size\""]);
        // Only columns of tables that are named.
        completes("SELECT * FROM trades WHERE cl", &[]);
        completes("SELECT cl", &["close"]);
    }

    #[test]
    fn options_are_completed() {
        completes("SET ", &["rmq.engine", "rmq.range_joins"]);
        completes("SET rmq.", &["rmq.engine", "rmq.range_joins"]);
        completes("show rmq.ra", &["rmq.range_joins"]);
        completes("reset dat", &["datafusion.execution.batch_size"]);
    }

    #[test]
    fn commands_and_their_arguments_are_completed() {
        completes("\\d", &["\\d", "\\dt", "\\df"]);
        completes("\\d p", &["prices"]);
        completes("\\h range_m", &["range_max", "range_min"]);
        completes("\\timing o", &["on", "off"]);
        assert_eq!(
            names().candidates("\\pset format c").0,
            "\\pset format ".len()
        );
    }

    #[test]
    fn tables_and_columns_are_completed_within_arguments_of_range_functions() {
        let completes = |text: &str, expected: &[&str]| {
            assert!(is_in_string(text), "{text}");
            let found = names().argument_candidates(text);
            assert_eq!(found.unwrap_or_default().1, expected, "{text}");
        };
        completes("SELECT range_min('pri", &["prices"]);
        completes("SELECT range_min('prices.cl", &["close"]);
        completes(
            "SELECT * FROM range_join('trades AS t', 'prices', 'sy",
            &["sym"],
        );
        let condition = "SELECT * FROM range_join('trades AS t', 'prices', 'sym', 'ts <= t.i";
        completes(condition, &["id"]);
        // Files, and strings of other functions.
        completes("SELECT range_min('data/q", &[]);
        completes("SELECT * FROM 'pri", &[]);
        completes("SELECT range_min('prices.close', 0, length('pri", &[]);
        let start = |text: &str| names().argument_candidates(text).map(|(start, _)| start);
        assert_eq!(start("SELECT range_min('prices.cl"), Some(25));
    }

    #[test]
    fn files_are_completed_within_strings() {
        assert!(is_in_string("SELECT * FROM 'data/q"));
        assert!(!is_in_string("SELECT 'a', "));
    }
}
