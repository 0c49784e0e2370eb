//! What is read of objects that tenants write, in a process of its own: its memory is measured.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::fs;

use fit::lean;
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Some of a page of the API server's (`cluster::api::PAGE`): memory grows with each alike.
const OBJECTS: usize = 3;

/// JSON in JSON, deeper than serde_json goes.
fn nested() -> String {
    let depth = 1000;
    format!("{}{}", r#"{"a":"#.repeat(depth) + "1", "}".repeat(depth))
}

fn status_kib(key: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap();
    let figure = line.split_whitespace().nth(1).unwrap();
    figure.parse().unwrap()
}

/// The most that this process has had while it decoded, above what it had before, KiB; and how much text it was.
fn peak<T: DeserializeOwned>(object: &str) -> (usize, usize) {
    let text = format!("[{}]", [object; OBJECTS].join(","));
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status_kib("VmRSS:");
    let objects: Vec<T> = serde_json::from_str(&text).unwrap();
    assert_eq!(objects.len(), OBJECTS);
    (
        status_kib("VmHWM:").saturating_sub(before),
        text.len() / 1024,
    )
}

/// A megabyte of entries.
fn many(entry: &str) -> String {
    vec![entry; (1 << 20) / (entry.len() + 1)].join(",")
}

fn labels() -> String {
    let entries: Vec<String> = (0..60_000)
        .map(|number| format!(r#""k{number}":"""#))
        .collect();
    entries.join(",")
}

#[test]
fn what_a_tenant_writes_grows_little_when_it_is_read() {
    let small = many(r#"{"":0}"#);
    let parameters = format!(r#"{{"driver":"x.example.com","parameters":{{"a":[{small}]}}}}"#);
    let config = format!(r#""config":[{{"source":"FromClaim","opaque":{parameters}}}]"#);
    let ours = config.replace("x.example.com", "gpu.cgpu.io");
    let metadata = |rest: &str| format!(r#""metadata":{{"name":"a","namespace":"team",{rest}}}"#);
    let plain = metadata(r#""uid":"u""#);
    let claims = [
        format!("{{{plain},\"spec\":{{\"devices\":{{{config}}}}}}}"),
        format!(
            "{{{plain},\"spec\":{{}},\"status\":{{\"allocation\":{{\"devices\":{{{ours}}}}}}}}}"
        ),
        format!(
            "{{{plain},\"spec\":{{\"devices\":{{\"requests\":[{{\"name\":\"a\",\"exactly\":{{\"deviceClassName\":\"c\",\"capacity\":{{\"requests\":{{{}}}}}}}}}]}}}}}}",
            labels().replace("\"\"", "\"1\"")
        ),
        format!(
            "{{{},\"spec\":{{}}}}",
            metadata(&format!("\"labels\":{{{}}}", labels()))
        ),
    ];
    let terms = format!(
        r#""affinity":{{"nodeAffinity":{{"requiredDuringSchedulingIgnoredDuringExecution":{{"nodeSelectorTerms":[{}]}}}}}}"#,
        many("{}")
    );
    let env = format!(
        r#""containers":[{{"name":"c","env":[{}]}}]"#,
        many(r#"{"name":"A"}"#)
    );
    let pods = [terms, env, format!(r#""tolerations":[{}]"#, many("{}"))];
    let read = claims.iter().map(|claim| peak::<lean::Claim>(claim));
    let pods = pods.map(|spec| peak::<lean::Pod>(&format!("{{{plain},\"spec\":{{{spec}}}}}")));
    for (index, (peak, text)) in read.chain(pods).enumerate() {
        println!("{index}: {peak} KiB for {text} KiB");
        // What is passed over takes nothing, what is too long its text.
        assert!(
            peak < text * 3 / 2 + 1536,
            "{index}: {peak} KiB for {text} KiB"
        );
    }
    let (whole, text) = peak::<ResourceClaim>(&claims[0]);
    assert!(
        whole > text * 5,
        "as the API has it: {whole} KiB for {text} KiB"
    );
}

#[test]
fn an_object_that_is_nested_deeply_stops_no_list() {
    let nested = nested();
    let claim = format!(
        r#"{{"metadata":{{"name":"a","managedFields":[{{"fieldsV1":{nested}}}]}},
            "spec":{{"devices":{{"requests":[{{"name":"r","exactly":{{"deviceClassName":"vgpu.cgpu.io"}}}}],
                "config":[{{"opaque":{{"driver":"x.example.com","parameters":{nested}}}}}]}}}},
            "status":{{"devices":[{{"data":{nested}}}],"allocation":{{"devices":{{"config":[
                {{"source":"FromClaim","opaque":{{"driver":"x.example.com","parameters":{nested}}}}},
                {{"source":"FromClaim","opaque":{{"driver":"gpu.cgpu.io","parameters":{nested}}}}},
                {{"source":"FromClass","opaque":{{"driver":"gpu.cgpu.io","parameters":{{"weight":7}}}}}}
            ]}}}}}}}}"#
    );
    serde_json::from_str::<ResourceClaim>(&claim).unwrap_err();
    let read: lean::Claim = serde_json::from_str(&claim).unwrap();
    assert!(read.spec.is_some(), "what it asks for is short");
    let read = ResourceClaim::from(read);
    let requests = read.spec.devices.unwrap().requests.unwrap();
    assert_eq!(requests[0].name, "r");
    let devices = read.status.unwrap().allocation.unwrap().devices.unwrap();
    let ours: Vec<Value> = devices
        .config
        .unwrap()
        .into_iter()
        .map(|config| config.opaque.unwrap().parameters.0)
        .collect();
    let too_long = format!("{} bytes, of which 1024 are allowed", nested.len());
    assert_eq!(ours, [json!(too_long), json!({"weight": 7})]);
    let long = format!(r#""name":"{}""#, "r".repeat(64 << 10));
    let asks = claim.replace(r#""name":"r""#, &long);
    let read: lean::Claim = serde_json::from_str(&asks).unwrap();
    assert!(read.spec.is_none(), "nobody asks so");
}

#[test]
fn a_claim_has_its_owner_and_no_long_list_of_them() {
    let owner = r#"{"apiVersion":"v1","kind":"Pod","name":"p","uid":"u","controller":true}"#;
    let owners = |all: &str| {
        let text =
            format!(r#"{{"metadata":{{"name":"a","ownerReferences":[{all}]}},"spec":{{}}}}"#);
        let read: lean::Claim = serde_json::from_str(&text).unwrap();
        read.owners.0.map(Option::unwrap_or_default)
    };
    let [one] = &*owners(owner).unwrap() else {
        panic!("one owner");
    };
    assert_eq!((one.kind.as_str(), one.controller), ("Pod", Some(true)));
    assert_eq!(owners("").unwrap(), []);
    assert_eq!(owners(&many(owner)), None);
}
