use super::fixture::{card, process, vgpu};
use super::*;

fn of(vgpus: Vec<PsVgpu>) -> Hierarchy {
    let cards = vec![card(0, "GPU-0"), card(1, "GPU-1")];
    Hierarchy::new(cards, vgpus, &mut Serials::default())
}

/// What is at a path.
fn at(hierarchy: &Hierarchy, path: &str) -> Option<Node> {
    let parts = path.split('/').filter(|part| !part.is_empty());
    let mut node = Node::Root;
    for part in parts {
        node = hierarchy.find(node, part)?;
    }
    Some(node)
}

fn text(hierarchy: &Hierarchy, path: &str) -> Result<String, Errno> {
    hierarchy.text(at(hierarchy, path).ok_or(Errno::ENOENT)?)
}

fn names(hierarchy: &Hierarchy, path: &str) -> Vec<String> {
    let all = hierarchy.list(at(hierarchy, path).unwrap());
    all.into_iter().map(|(_, name)| name).collect()
}

#[test]
fn the_files_have_what_scripts_of_cgpu_read() {
    let mut one = vgpu("moby", "c1", &["GPU-1"]);
    one.name = Some("web".to_owned());
    one.processes = Some(vec![process(7, &["GPU-1"]), process(8, &["GPU-0"])]);
    let share = &mut one.cards.first_mut().unwrap().share;
    share.weight = Some(3);
    share.priority = Some("high".to_owned());
    let hierarchy = of(vec![one]);
    assert_eq!(names(&hierarchy, ""), ["version", "major", "0", "1"]);
    let rules = ["max_inst", "policy", "prio_ratio"];
    assert_eq!(names(&hierarchy, "0"), rules);
    assert_eq!(
        names(&hierarchy, "1"),
        [rules.as_slice(), &["web"]].concat()
    );
    let files = ["id", "memsize", "meminfo", "weight", "highprio"];
    assert_eq!(names(&hierarchy, "1/web"), files);
    for (path, content) in [
        ("version", concat!(env!("CARGO_PKG_VERSION"), "\n")),
        ("major", "195\n"),
        ("1/max_inst", "20\n"),
        ("1/policy", "4\n"),
        ("1/prio_ratio", "80\n"),
        ("1/web/id", "moby/c1\n"),
        ("1/web/memsize", "4294967296\n"),
        // The process on the other card is not listed.
        (
            "1/web/meminfo",
            "Free: 3221225472\nPID: 7 Mem: 1073741824\n",
        ),
        ("1/web/weight", "3\n"),
        ("1/web/highprio", "1\n"),
    ] {
        assert_eq!(text(&hierarchy, path).as_deref(), Ok(content), "{path}");
    }
    for absent in [
        "2",
        "00",
        "+0",
        "0/web",
        "1/web/mode",
        "1/x",
        "version/x",
        "1/policy/x",
    ] {
        assert_eq!(at(&hierarchy, absent), None, "{absent}");
    }
    assert_eq!(text(&hierarchy, "1"), Err(Errno::EISDIR));
}

#[test]
fn what_nobody_counts_or_answers_has_no_number() {
    let mut silent = vgpu("moby", "silent", &["GPU-0"]);
    silent.state = State::Silent;
    silent.processes = None;
    silent.cards.first_mut().unwrap().used_bytes = None;
    let mut gone = silent.clone();
    gone.container = "gone".to_owned();
    gone.state = State::BrokerGone;
    let mut limited = silent.clone();
    limited.container = "limited".to_owned();
    limited.backend = Backend::DriverLimit;
    let mut shares = limited.clone();
    shares.container = "shares".to_owned();
    shares.backend = Backend::Share;
    shares.cards.first_mut().unwrap().quota_bytes = 0;
    let hierarchy = of(vec![silent, gone, limited, shares]);
    let meminfo = |id: &str| text(&hierarchy, &format!("0/moby:{id}/meminfo"));
    assert_eq!(meminfo("silent"), Err(Errno::ETIMEDOUT));
    assert_eq!(meminfo("gone"), Err(Errno::EIO));
    assert_eq!(
        text(&hierarchy, "0/moby:silent/memsize").unwrap(),
        "4294967296\n"
    );
    assert_eq!(names(&hierarchy, "0/moby:limited"), ["id", "memsize"]);
    assert_eq!(names(&hierarchy, "0/moby:shares"), ["id"]);
}

#[test]
fn a_number_is_given_to_no_other_container() {
    let mut serials = Serials::default();
    let mut at_moment = |ids: &[&str]| {
        let vgpus = ids.iter().map(|id| vgpu("moby", id, &["GPU-0"])).collect();
        Hierarchy::new(vec![card(0, "GPU-0")], vgpus, &mut serials)
    };
    let before = at_moment(&["a", "b"]);
    let (a, b) = (
        at(&before, "0/moby:a/id").unwrap(),
        at(&before, "0/moby:b").unwrap(),
    );
    let after = at_moment(&["b", "c"]);
    assert_eq!(at(&after, "0/moby:b"), Some(b));
    assert_eq!(after.text(a), Err(Errno::ENOENT));
    // A container of the same name that came later.
    let later = at_moment(&["a", "b", "c"]);
    assert_ne!(at(&later, "0/moby:a/id"), Some(a));
    assert_eq!(later.target(a), Err(Errno::ENOENT));
}

#[test]
fn a_write_is_for_what_can_be_changed() {
    let hierarchy = of(vec![vgpu("moby", "c1", &["GPU-0", "GPU-1"])]);
    let target = |path: &str| hierarchy.target(at(&hierarchy, path).unwrap());
    let key = ContainerKey::new("moby", "c1").unwrap();
    assert_eq!(
        target("1/moby:c1/memsize"),
        Ok(Target::Container(key, 2, ContainerFile::Memsize))
    );
    assert_eq!(
        target("1/policy"),
        Ok(Target::Rule("GPU-1".to_owned(), CardFile::Policy))
    );
    for fixed in [
        "version",
        "major",
        "0",
        "0/moby:c1",
        "0/moby:c1/id",
        "0/moby:c1/meminfo",
    ] {
        assert_eq!(target(fixed), Err(Errno::EACCES), "{fixed}");
    }
}

#[test]
fn there_is_a_most_of_containers_and_those_left_out_are_counted() {
    let many = (0..CONTAINERS_MOST + 3).map(|number| PsVgpu {
        container: format!("c{number:06}"),
        ..vgpu("moby", "c", &[])
    });
    let one = vgpu("moby", "c", &["GPU-0"]);
    let many = many.map(|of| PsVgpu {
        cards: one.cards.clone(),
        ..of
    });
    let hierarchy = of(many.collect());
    assert_eq!(names(&hierarchy, "0").len(), CONTAINERS_MOST + 3);
    assert_eq!(hierarchy.left_out, 3);
}
