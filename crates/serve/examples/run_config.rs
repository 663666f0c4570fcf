//! Serves what a config on the command line says (`;` for a new line) until a signal.

fn main() {
    let text = std::env::args().nth(1).unwrap_or_default().replace(';', "\n");
    let base = std::env::current_dir().expect("there is a current folder");
    let config = match serve::Config::parse(&text, &base) {
        Ok(config) => config,
        Err(errors) => {
            eprintln!("{errors}");
            std::process::exit(2);
        }
    };
    if let Err(error) = serve::run(&config, |ready| println!("{ready:?}")) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
