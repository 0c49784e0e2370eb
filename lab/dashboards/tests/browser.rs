//! The agent's page in a real browser. With `CGPU_SCREENSHOTS` in the environment, its pictures are left in the folder of that name.

#[expect(dead_code, reason = "the other test does more with the host")]
mod host;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use host::{Host, get};
use integration::command::{Outcome, capture, find};
use integration::programs::Programs;
use integration::skip;

/// What one start of the browser may take.
const LIMIT: Duration = Duration::from_secs(60);

struct Browser {
    program: PathBuf,
    profile: PathBuf,
}

impl Browser {
    /// Starts it with these options on an address, as root and without a screen.
    fn open(&self, options: &[&str], address: &str) -> Result<Outcome> {
        let mut command = Command::new(&self.program);
        command
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
            ])
            .args([
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-extensions",
            ])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
            ])
            .args(["--enable-logging=stderr", "--v=0"])
            .arg(format!("--user-data-dir={}", self.profile.display()))
            .args(options)
            .arg(address);
        capture(&mut command, LIMIT)?.success()
    }
}

/// Width and height of a PNG, by its first chunk.
fn size(path: &Path) -> Result<(u32, u32)> {
    let bytes = fs::read(path)?;
    ensure!(bytes.starts_with(b"\x89PNG\r\n\x1a\n"), "no PNG");
    let side = |at: usize| -> Result<u32> {
        let four = bytes.get(at..at + 4).context("a whole chunk")?;
        Ok(u32::from_be_bytes(four.try_into()?))
    };
    Ok((side(16)?, side(20)?))
}

#[test]
fn a_browser_shows_the_page_and_refuses_nothing_of_it() -> Result<()> {
    const TEST: &str = "a_browser_shows_the_page_and_refuses_nothing_of_it";
    if let Some(reason) = skip::lacks_root() {
        skip!(TEST, "{reason}");
    }
    let Some(program) = find("chromium") else {
        skip!(TEST, "no chromium");
    };
    let host = Host::start(Programs::for_tests()?)?;
    // Every share is known, and memory was refused.
    let until = Instant::now() + Duration::from_secs(30);
    let is_busy =
        |page: &str| page.contains("30 %</span>") && page.contains("class=\"number bad\"");
    while !is_busy(&get(&host.agent_address, "/")?) {
        ensure!(
            Instant::now() < until,
            "{}\n{}",
            get(&host.agent_address, "/")?,
            host.tail()
        );
        std::thread::sleep(Duration::from_millis(500));
    }
    std::thread::sleep(Duration::from_secs(3));
    let browser = Browser {
        program,
        profile: host.folder().join("browser"),
    };
    let address = format!("http://{}/?pause", host.agent_address);
    let shown = browser.open(&["--dump-dom"], &address)?;
    for part in [
        "<bdi>train-0/app</bdi>",
        "Simulated RTX 4090",
        "fixed 30 %",
        "</svg>",
    ] {
        ensure!(shown.stdout.contains(part), "{part}: {}", shown.stdout);
    }
    let refused = shown.stderr.lines().find(|line| line.contains("CONSOLE"));
    ensure!(refused.is_none(), "{refused:?}");
    let kept = std::env::var_os("CGPU_SCREENSHOTS").map(PathBuf::from);
    let folder = kept.unwrap_or_else(|| host.folder().to_owned());
    for (name, sides, scheme) in [
        ("page.png", (1280, 800), ""),
        (
            "page-dark.png",
            (1280, 800),
            "--blink-settings=preferredColorScheme=0",
        ),
        ("page-phone.png", (500, 1100), ""),
    ] {
        let picture = folder.join(name);
        let (width, height) = sides;
        let options = [
            format!("--window-size={width},{height}"),
            format!("--screenshot={}", picture.display()),
            scheme.to_owned(),
        ];
        let options = options
            .iter()
            .map(String::as_str)
            .filter(|text| !text.is_empty());
        browser.open(&options.collect::<Vec<_>>(), &address)?;
        ensure!(size(&picture)? == sides, "{:?}", size(&picture)?);
        // A page without its style, or an error, is a few lines on an empty ground.
        let bytes = fs::metadata(&picture)?.len();
        ensure!(bytes > 15_000, "{name} has {bytes} bytes");
    }
    Ok(())
}
