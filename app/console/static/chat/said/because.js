// Why the cache held no more of a prompt than it did, beside the response that was compared with.

/** @type {Record<string, string>} */
const CAUSES = {
  model_changed: "the model differs",
  prompt_cache_key_changed: "the cache key differs",
  tools_changed: "the functions differ",
  reasoning_effort_changed: "the reasoning effort differs",
  context_compacted: "the context was compacted",
  input_changed: "what is said differs",
  evicted: "blocks were evicted",
  no_state: "keys were there, but no state to go on from",
  end_user_changed: "it is another end user's",
  namespace_changed: "the blocks have other keys",
  prefix_shorter_than_block: "less than a block is alike",
  not_kept: "the other one had no more kept",
  lost_long_ago: "blocks were evicted long ago",
  never_seen: "they were not here since the engine's start",
  unknown: "the engine did not say why",
};
/** @type {Record<string, string>} */
const EVICTORS = {
  pressure: "for want of memory",
  expired: "behind the end of a lease",
  own_quota: "beyond the tenant's limit of leases",
  deleted: "as they were deleted",
};

/** @param {Record<string, any> | null | undefined} diagnostics of a response */
export function because(diagnostics) {
  if (!diagnostics) return "";
  if (diagnostics.type === "comparison_response_not_found") return "the response to compare with is gone";
  const parts = [];
  const own = diagnostics.details?.reason;
  if (diagnostics.type === "cache_miss") {
    const behind = diagnostics.comparison_reusable_tokens;
    const where = behind === undefined ? "" : ` behind token ${behind}`;
    parts.push(`${CAUSES[diagnostics.reason] ?? diagnostics.reason}${where}`);
  }
  if (own && own !== "not_asked") {
    const evictor = EVICTORS[diagnostics.details.evicted_by];
    parts.push(`${CAUSES[own] ?? own}${evictor ? ` ${evictor}` : ""}`);
  }
  return parts.length ? `no more, as ${parts.join(", and ")}` : "";
}
