//! Claims as the kubelet meets them, on a real state folder; the test plays kubelet and API server.
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::fixture::api::Fault;
use crate::fixture::{Fixture, claim, claim_path, configured, device, share, soon, uid, uuid};
use cards::lock::StateLock;
use hyper::Method;
use serde_json::json;

#[tokio::test]
async fn the_kubelet_finds_the_driver_and_its_versions() {
    let fixture = Fixture::new().await;
    let _driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    assert_eq!(kubelet.info.r#type, "DRAPlugin");
    assert_eq!(kubelet.info.name, "gpu.cgpu.io");
    let endpoint = fixture.path("kubelet/plugins/gpu.cgpu.io/dra.sock");
    assert_eq!(kubelet.info.endpoint, endpoint.to_string_lossy());
    let versions = [
        "v1.DRAPlugin",
        "v1beta1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
    ];
    assert_eq!(kubelet.info.supported_versions, versions);
}

#[tokio::test]
async fn a_claim_is_reserved_and_its_pointer_handed_to_the_engine() {
    let fixture = Fixture::new().await;
    let class = json!({"policy": "soft", "allow": ["weight"]});
    let of_class = configured(claim(1, "c", 0, "8Gi"), "FromClass", &class);
    fixture.claim(
        "c",
        configured(of_class, "FromClaim", &json!({"weight": 5})),
    );
    let _driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    let answer = kubelet.prepare(&[("c", &uid(1))]).await.claims[&uid(1)].clone();
    assert_eq!(answer.error, "");
    let [prepared] = answer.devices.as_slice() else {
        panic!("{answer:?}");
    };
    assert_eq!(
        (prepared.pool_name.as_str(), &prepared.device_name),
        ("n1", &device(0))
    );
    assert_eq!(
        (
            prepared.request_names.as_slice(),
            prepared.share_id.as_ref()
        ),
        (&["vgpu".to_owned()][..], Some(&share(1)))
    );
    let name = format!("{}-vgpu-{}", uid(1), share(1));
    assert_eq!(
        prepared.cdi_device_ids,
        [format!("gpu.cgpu.io/claim={name}")]
    );

    let record = fixture.record(&uid(1)).unwrap();
    assert_eq!(record["pods"], json!([{"uid": "pod-1", "name": "p"}]));
    assert_eq!(
        record["requests"]["vgpu"]["shares"][0]["memory_bytes"],
        8_u64 << 30
    );
    assert_eq!(record["requests"]["vgpu"]["compute"]["weight"], 5);
    let cdi = fixture.cdi(&uid(1)).unwrap();
    assert_eq!(cdi["devices"][0]["name"], name);
    let variable = format!("CGPU_CLAIM_00000001={}/vgpu/{}", uid(1), share(1));
    assert_eq!(
        cdi["devices"][0]["containerEdits"],
        json!({"env": [variable]})
    );

    // Again, as after a restart of the kubelet, and by the former version.
    let again = kubelet.prepare(&[("c", &uid(1))]).await.claims[&uid(1)].clone();
    assert_eq!(again, answer);
    let beta = kubelet.prepare_beta("c", &uid(1)).await;
    assert_eq!(beta.devices[0].cdi_device_ids, prepared.cdi_device_ids);
    assert_eq!(fixture.record(&uid(1)).unwrap(), record);

    let status = || fixture.api.get(&claim_path("c")).unwrap()["status"]["devices"][0].clone();
    soon("a status", || status()["data"]["uuid"] == uuid(0)).await;
    assert_eq!(status()["conditions"][0]["type"], "Ready");
    assert_eq!(status()["data"]["memoryBytes"], 8_u64 << 30);

    for _twice in 0..2 {
        assert_eq!(kubelet.unprepare("c", &uid(1)).await, "");
        assert_eq!(
            (fixture.record(&uid(1)), fixture.cdi(&uid(1))),
            (None, None)
        );
    }
}

#[tokio::test]
async fn another_pod_of_a_claim_is_let_in() {
    let fixture = Fixture::new().await;
    let mut shared = claim(1, "c", 0, "8Gi");
    fixture.claim("c", shared.clone());
    let _driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    assert_eq!(kubelet.prepare_one("c", &uid(1)).await, "");
    // The kubelet asks for a claim that it has prepared no second time.
    let users = shared["status"]["reservedFor"].as_array_mut().unwrap();
    users.push(json!({"resource": "pods", "name": "q", "uid": "pod-q"}));
    fixture.claim("c", shared);
    let both = json!([{"uid": "pod-1", "name": "p"}, {"uid": "pod-q", "name": "q"}]);
    let pods = || fixture.record(&uid(1)).unwrap()["pods"].clone();
    soon("both pods", || pods() == both).await;
    // Another kubelet, or the same one after a restart, does.
    assert_eq!(kubelet.prepare_one("c", &uid(1)).await, "");
    assert_eq!(pods(), both);
}

#[tokio::test]
async fn claims_are_given_back_while_the_driver_holds_one_up() {
    let fixture = Fixture::new().await;
    fixture.claim("given", claim(1, "given", 0, "1Gi"));
    fixture.claim("late", claim(2, "late", 0, "1Gi"));
    let _driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    assert_eq!(kubelet.prepare_one("given", &uid(1)).await, "");
    let hung = fixture.questions.hung.lock().await;
    let late = uid(2);
    let meanwhile = async {
        let count = || fixture.questions.count.load(Ordering::Relaxed);
        soon("a question", || count() == 2).await;
        assert_eq!(kubelet.unprepare("given", &uid(1)).await, "");
        assert_eq!(kubelet.unprepare("late", &late).await, "");
        drop(hung);
    };
    let (error, ()) = tokio::join!(kubelet.prepare_one("late", &late), meanwhile);
    assert!(error.contains("given back meanwhile"), "{error}");
    assert_eq!(
        (fixture.record(&uid(1)), fixture.record(&late)),
        (None, None)
    );
}

/// As by a program of cgpu's that is stopped; the kubelet gives each call up and tries again.
#[test]
fn who_has_the_hosts_lock_holds_up_one_thread_and_no_question_to_the_driver() {
    let mut agent = tokio::runtime::Builder::new_current_thread();
    let agent = agent.enable_all().max_blocking_threads(4).build().unwrap();
    agent.block_on(async {
        let fixture = Fixture::new().await;
        fixture.claim("a", claim(1, "a", 0, "1Gi"));
        fixture.claim("b", claim(2, "b", 0, "1Gi"));
        let _driver = fixture.start();
        let kubelet = fixture.kubelet().await;
        let locked = StateLock::take(&fixture.path("state")).unwrap();
        let (first, second, seen) = (uid(1), uid(2), &fixture.questions);
        let meanwhile = async {
            soon("its turn", || seen.reserving.load(Ordering::Relaxed) == 1).await;
            for count in 2..10 {
                let question = soon("a question", || seen.count.load(Ordering::Relaxed) == count);
                tokio::select! {
                    why = kubelet.prepare_one("b", &second) => assert!(why.contains("holds up"), "{why}"),
                    () = question => {}
                }
            }
            drop(locked);
        };
        let (prepared, ()) = tokio::join!(kubelet.prepare_one("a", &first), meanwhile);
        assert_eq!(prepared, "");
        assert_eq!(kubelet.prepare_one("b", &second).await, "");
    });
}

#[tokio::test]
async fn each_claim_of_a_call_is_answered_for_itself() {
    let fixture = Fixture::new().await;
    fixture.claim("good", claim(1, "good", 0, "1Gi"));
    fixture.claim("again", claim(99, "again", 0, "1Gi"));
    let mut other = claim(4, "other", 0, "1Gi");
    other["status"]["allocation"]["devices"]["results"][0]["driver"] = json!("gpu.nvidia.com");
    fixture.claim("other", other);
    let amounts = json!({"memory": "200Gi"});
    fixture.claim(
        "amounts",
        configured(claim(5, "amounts", 0, "1Gi"), "FromClaim", &amounts),
    );
    let unknown = json!({"isolation": "off"});
    fixture.claim(
        "unknown",
        configured(claim(6, "unknown", 0, "1Gi"), "FromClaim", &unknown),
    );
    fixture.claim("large", claim(7, "large", 1, "25Gi"));
    let _driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    let uids: Vec<String> = (1..8).map(uid).collect();
    let names = [
        "good", "absent", "again", "other", "amounts", "unknown", "large",
    ];
    let mut claims: Vec<(&str, &str)> = names
        .into_iter()
        .zip(uids.iter().map(String::as_str))
        .collect();
    claims.push(("good", "../../etc/passwd"));
    let answers = kubelet.prepare(&claims).await.claims;
    assert_eq!(answers.len(), claims.len());
    for ((name, uid), parts) in claims.iter().zip([
        &[][..],
        &["claim team-a/absent is gone"],
        &["claim team-a/again", "deleted and made again"],
        &["claim team-a/other", "another driver's"],
        &["claim team-a/amounts", "sets memory", "the scheduler's"],
        &[
            "claim team-a/unknown",
            "unknown key \"isolation\"",
            "managed, policy",
        ],
        &["claim team-a/large", "memory = 26843545600", "25769803776"],
        &["claim team-a/good", "../../etc/passwd"],
    ]) {
        let answer = &answers[*uid];
        assert_eq!(
            answer.error.is_empty(),
            parts.is_empty(),
            "{name}: {answer:?}"
        );
        assert_eq!(
            answer.devices.is_empty(),
            !parts.is_empty(),
            "{name}: {answer:?}"
        );
        for part in parts {
            assert!(answer.error.contains(part), "{part} is not in {answer:?}");
        }
    }
    let records = std::fs::read_dir(fixture.path("state/claims")).unwrap();
    assert_eq!(records.count(), 1, "what is refused leaves nothing");
}

#[tokio::test]
async fn what_does_not_fit_is_refused_and_fits_when_another_claim_is_gone() {
    let fixture = Fixture::new().await;
    fixture.claim("a", claim(1, "a", 0, "16Gi"));
    fixture.claim("b", claim(2, "b", 0, "16Gi"));
    let _driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    assert_eq!(kubelet.prepare_one("a", &uid(1)).await, "");
    // The scheduler has counted wrongly.
    let error = kubelet.prepare_one("b", &uid(2)).await;
    assert!(error.contains("claim team-a/b"), "{error}");
    assert_eq!(fixture.cdi(&uid(2)), None);
    assert_eq!(kubelet.unprepare("a", &uid(1)).await, "");
    assert_eq!(kubelet.prepare_one("b", &uid(2)).await, "");
}

#[tokio::test]
async fn a_claim_has_thirty_two_shares() {
    let fixture = Fixture::new().await;
    let mut large = claim(1, "c", 0, "512Mi");
    let results = large
        .pointer_mut("/status/allocation/devices/results")
        .unwrap();
    let one = results[0].clone();
    let all = (0..32).map(|number| {
        let mut result = one.clone();
        result["shareID"] = json!(share(number));
        result["device"] = json!(device(number % 2));
        result["request"] = json!(format!("r{}", number / 2));
        result
    });
    *results = all.collect();
    fixture.claim("c", large);
    let _driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    let answer = kubelet.prepare(&[("c", &uid(1))]).await.claims[&uid(1)].clone();
    assert_eq!((answer.error.as_str(), answer.devices.len()), ("", 32));
    assert_eq!(
        fixture.cdi(&uid(1)).unwrap()["devices"]
            .as_array()
            .unwrap()
            .len(),
        32
    );
}

#[tokio::test]
async fn an_api_server_that_throttles_or_is_slow_delays_a_claim_and_one_that_is_gone_fails_it() {
    let fixture = Fixture::new().await;
    fixture.claim("c", claim(1, "c", 0, "8Gi"));
    let _driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    let path = claim_path("c");
    fixture.api.fail(Method::GET, &path, Fault::Status(429));
    fixture.api.fail(Method::GET, &path, Fault::Status(503));
    fixture
        .api
        .fail(Method::GET, &path, Fault::Slow(Duration::from_millis(300)));
    assert_eq!(kubelet.prepare_one("c", &uid(1)).await, "");
    for (fault, part) in [
        (Fault::Status(500), "500"),
        (Fault::Status(403), "403"),
        (Fault::Close, "get claim team-a/c"),
    ] {
        fixture.api.fail(Method::GET, &path, fault);
        let error = kubelet.prepare_one("c", &uid(1)).await;
        assert!(
            error.contains(part) && error.contains("team-a/c"),
            "{error}"
        );
        assert!(fixture.record(&uid(1)).is_some(), "what is reserved stays");
        assert_eq!(kubelet.prepare_one("c", &uid(1)).await, "");
    }
}

#[tokio::test]
async fn nobody_waits_for_a_claim_s_status() {
    let fixture = Fixture::new().await;
    fixture.claim("c", claim(1, "c", 0, "8Gi"));
    let _driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    let path = format!("{}/status", claim_path("c"));
    fixture
        .api
        .fail(Method::PATCH, &path, Fault::Slow(Duration::from_secs(8)));
    let began = Instant::now();
    assert_eq!(kubelet.prepare_one("c", &uid(1)).await, "");
    assert!(began.elapsed() < Duration::from_secs(6));
    fixture.api.fail(Method::PATCH, &path, Fault::Status(409));
    assert_eq!(kubelet.prepare_one("c", &uid(1)).await, "");
    soon("the second write", || {
        fixture.api.count(&Method::PATCH, &path) >= 2
    })
    .await;
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_is_named_and_prepare_can_be_repeated() {
    let fixture = Fixture::new().await;
    fixture.claim("c", claim(1, "c", 0, "8Gi"));
    // Root writes everywhere, but no folder below a file.
    std::fs::write(fixture.path("cdi"), "").unwrap();
    let _driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    let error = kubelet.prepare_one("c", &uid(1)).await;
    assert!(
        error.contains("claim team-a/c") && error.contains("/cdi"),
        "{error}"
    );
    std::fs::remove_file(fixture.path("cdi")).unwrap();
    assert_eq!(kubelet.prepare_one("c", &uid(1)).await, "");
    assert!(fixture.cdi(&uid(1)).is_some());
}

#[tokio::test]
async fn a_record_of_a_newer_version_is_not_given_away() {
    let fixture = Fixture::new().await;
    fixture.claim("c", claim(1, "c", 0, "8Gi"));
    let folder = fixture.path("state/claims");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join(format!("{}.json", uid(2)));
    std::fs::write(&file, r#"{"version": 99}"#).unwrap();
    let _driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    let error = kubelet.prepare_one("c", &uid(1)).await;
    assert!(
        error.contains(&*file.to_string_lossy()) && error.contains("99"),
        "{error}"
    );
    assert!(file.exists());
}

#[tokio::test]
async fn what_is_prepared_and_refused_is_counted() {
    let fixture = Fixture::new().await;
    let driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    fixture.claim("c", claim(1, "c", 0, "1Gi"));
    assert_eq!(kubelet.prepare_one("c", &uid(1)).await, "");
    // Once more, as a kubelet does that starts again; then one that nobody knows, and one that is another one by now.
    assert_eq!(kubelet.prepare_one("c", &uid(1)).await, "");
    assert_ne!(kubelet.prepare_one("d", &uid(2)).await, "");
    assert_ne!(kubelet.prepare_one("c", &uid(3)).await, "");
    let counts = driver.counts.now();
    let durations = &counts.prepare_durations;
    let prepared: u64 = durations.buckets.iter().map(|(_, count)| count).sum();
    assert_eq!((prepared, counts.prepares_refused), (2, 2));
    assert!(durations.sum_seconds > 0.0, "{durations:?}");
}

#[tokio::test]
async fn prepare_takes_milliseconds_with_a_hundred_claims() {
    let fixture = Fixture::new().await;
    let _driver = fixture.start();
    let kubelet = fixture.kubelet().await;
    let mut times = hdrhistogram::Histogram::<u64>::new(3).unwrap();
    for number in 0..100 {
        let name = format!("c{number}");
        fixture.claim(&name, claim(number, &name, number % 2, "256Mi"));
        let began = Instant::now();
        assert_eq!(kubelet.prepare_one(&name, &uid(number)).await, "");
        times
            .record(u64::try_from(began.elapsed().as_micros()).unwrap())
            .unwrap();
    }
    let ms = |us: u64| Duration::from_micros(us).as_secs_f64() * 1e3;
    let text = format!(
        "NodePrepareResources of 100 claims, a played API server, not optimised: median {:.1} ms, p99 {:.1} ms, longest {:.1} ms\n",
        ms(times.value_at_quantile(0.5)),
        ms(times.value_at_quantile(0.99)),
        ms(times.max())
    );
    print!("{text}");
    if let Some(path) = std::env::var_os("CGPU_NODE_SUMMARY") {
        std::fs::write(path, text).unwrap();
    }
}
