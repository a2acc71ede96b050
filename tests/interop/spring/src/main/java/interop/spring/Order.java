package interop.spring;

/** A payload that is neither text nor bytes: rocketmq-spring writes it as JSON. */
record Order(String id, String region, int total) {
}
