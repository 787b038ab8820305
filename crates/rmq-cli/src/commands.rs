//! Backslash commands: those of DataFusion's shell, and more.

use std::io::{self, Write};

use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion_cli::command::{Command, OutputFormat};

use crate::functions::{functions_as_sql, help, quoted, similar};
use crate::shell::Shell;

/// The commands and what they do.
pub const COMMANDS: [(&str, &str); 13] = [
    ("\\?", "this list"),
    ("\\q", "quit"),
    ("\\d", "list tables, and those of the information schema"),
    ("\\d NAME", "the columns of a table"),
    ("\\dt", "list tables and views"),
    ("\\df [TEXT]", "list functions whose name contains the text"),
    (
        "\\h [NAME]",
        "what a function, or a statement such as SELECT, does and how it is written",
    ),
    ("\\i FILE", "run the statements of a file"),
    (
        "\\timing [on|off]",
        "print how many rows a result has and how long it took",
    ),
    ("\\quiet [true|false]", "the opposite of \\timing"),
    (
        "\\pset format NAME",
        "the format of results: csv, tsv, table, json, nd-json or automatic",
    ),
    ("\\pset null TEXT", "what NULL is in tables, CSV and TSV"),
    (
        "\\object_store_profiling [disabled|summary|trace]",
        "print requests to object stores",
    ),
];

/// Runs a backslash command, words separated by single spaces, except `\q` and `\i FILE`.
///
/// # Errors
/// If there is no such command, or it fails.
pub async fn run(shell: &mut Shell, command: &str) -> Result<()> {
    let unknown = |()| {
        exec_datafusion_err!(
            "'{command}' is not a valid command, you can use '\\?' to see all commands"
        )
    };
    let (name, argument) = command.split_once(' ').unwrap_or((command, ""));
    match (name, argument) {
        ("\\?", "") => shell.run(&commands_as_sql()).await,
        ("\\dt", "") => {
            let tables = "SELECT table_schema, table_name, table_type FROM information_schema.tables \
                          WHERE table_schema <> 'information_schema' ORDER BY table_schema, table_name";
            shell.run(tables).await
        }
        ("\\df", text) => {
            let condition = format!("strpos(name, {}) > 0", quoted(&text.to_lowercase()));
            let functions = functions_as_sql("name, type, syntax", &condition);
            shell.run(&functions).await
        }
        ("\\h", name) if !name.is_empty() => match help(&shell.ctx, name) {
            Some(text) => Ok(write!(io::stdout(), "{text}")?),
            None => match command[1..].parse().map_err(unknown)? {
                Command::SearchFunctions(name) if statement_help(&name) => {
                    Command::SearchFunctions(name)
                        .execute(&shell.ctx, &mut shell.print)
                        .await
                }
                _ => exec_err!(
                    "there is no function or statement '{name}'{}",
                    similar(&shell.ctx, name)
                ),
            },
        },
        ("\\timing", "" | "on" | "off") => {
            shell.print.quiet = match argument {
                "on" => false,
                "off" => true,
                _ => !shell.print.quiet,
            };
            let state = if shell.print.quiet { "off" } else { "on" };
            Ok(writeln!(io::stdout(), "Timing is {state}.")?)
        }
        ("\\pset", "") => Ok(writeln!(
            io::stdout(),
            "Output format is {:?}.",
            shell.print.format
        )?),
        ("\\pset", setting) => match setting.split_once(' ').unwrap_or((setting, "")) {
            ("null", text) => {
                shell.null = Some(text.to_string());
                let text = text.replace('\'', "''");
                let set = format!("SET datafusion.format.null = '{text}'");
                shell.ctx.sql(&set).await?;
                Ok(())
            }
            _ => {
                let format: OutputFormat = setting.parse().map_err(unknown)?;
                format.execute(&mut shell.print)?;
                shell.set_format(shell.print.format);
                Ok(())
            }
        },
        _ => {
            let command: Command = command[1..].parse().map_err(unknown)?;
            command.execute(&shell.ctx, &mut shell.print).await
        }
    }
}

/// Whether DataFusion's shell knows the syntax of this statement.
fn statement_help(name: &str) -> bool {
    name.parse::<datafusion_cli::functions::Function>().is_ok()
}

fn commands_as_sql() -> String {
    let rows = COMMANDS.iter().enumerate().map(|(i, (name, description))| {
        format!("({i}, {}, {})", quoted(name), quoted(description))
    });
    let rows = rows.collect::<Vec<_>>().join(", ");
    format!(
        "SELECT command, description FROM (VALUES {rows}) AS c(i, command, description) ORDER BY i"
    )
}
