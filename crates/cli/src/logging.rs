//! Where the log goes and in which form: `--log` and `--log-format`, which all subcommands have.

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The form of the log.
#[derive(Clone, Copy, Debug)]
pub enum LogFormat {
    /// Lines for people, on standard error.
    Text,
    /// An object of JSON in each line, on standard error.
    Json,
    /// Entries of systemd's journal, with a field for each value.
    Journald,
}

/// The form of that name. An environment that has the variable empty says nothing.
///
/// # Errors
/// There is none.
pub fn format(name: &str) -> Result<LogFormat, String> {
    match name {
        "" | "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        "journald" => Ok(LogFormat::Journald),
        _ => Err("--log-format, or WEIR_LOG_FORMAT, is text, json or journald".into()),
    }
}

/// Begins to log. Where there is no journal it is text: a server serves whether or not it is heard.
pub fn begin(level: LevelFilter, format: LogFormat) {
    let LogFormat::Journald = format else { return on_standard_error(level, format) };
    match tracing_journald::layer() {
        Ok(journal) => {
            let journal = journal.with_syslog_identifier("weir".into());
            tracing_subscriber::registry().with(level).with(journal).init();
        }
        Err(error) => {
            on_standard_error(level, LogFormat::Text);
            tracing::error!(
                %error,
                "--log-format journald: systemd's journal (/run/systemd/journal/socket) cannot be reached: the log is here"
            );
        }
    }
}

fn on_standard_error(level: LevelFilter, format: LogFormat) {
    let log = tracing_subscriber::fmt()
        // It would tell on standard error, and end the thread where that is a terminal that is gone.
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .with_max_level(level)
        .with_target(false);
    match format {
        LogFormat::Json => log.json().flatten_event(true).init(),
        _ => log.init(),
    }
}

#[cfg(test)]
mod tests {
    use super::format;

    #[test]
    fn an_empty_variable_says_nothing_and_a_wrong_one_is_told_by_its_name() {
        assert!(format("").is_ok() && format("journald").is_ok());
        assert!(format("xml").unwrap_err().contains("WEIR_LOG_FORMAT"));
    }
}
