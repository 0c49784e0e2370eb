module cgpu/security/client

go 1.21
