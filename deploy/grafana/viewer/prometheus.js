// Prometheus's HTTP API.

export class Prometheus {
  // `base`: the address that api/v1/ is below, with a slash at its end.
  constructor(base) {
    this.base = base;
  }

  async get(path, parameters, signal) {
    const address = new URL(`api/v1/${path}`, this.base);
    for (const [key, value] of Object.entries(parameters)) address.searchParams.set(key, value);
    let answer;
    try {
      const response = await fetch(address, {signal});
      answer = await response.json().catch(() => ({error: `${response.status} ${response.statusText} and no JSON`}));
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error(`no answer from Prometheus at ${this.base}`);
    }
    if (answer.status !== "success") throw new Error(answer.error ?? "Prometheus gave no reason");
    return answer.data;
  }

  // [{labels, times, values}] on the grid of steps; null where there is no sample or no number.
  async range(query, start, end, step, signal) {
    const {result} = await this.get("query_range", {query, start, end, step}, signal);
    const count = Math.floor((end - start) / step + 1e-9) + 1;
    const times = Array.from({length: count}, (_, i) => start + i * step);
    return result.map((series) => {
      const values = new Array(count).fill(null);
      for (const [at, text] of series.values) values[Math.round((at - start) / step)] = toNumber(text);
      return {labels: series.metric, times, values};
    });
  }

  // The same with one sample each.
  async instant(query, time, signal) {
    const {resultType, result} = await this.get("query", {query, time}, signal);
    const series = resultType === "scalar" ? [{metric: {}, value: result}] : result;
    return series.map(({metric, value}) => ({labels: metric, times: [value[0]], values: [toNumber(value[1])]}));
  }

  async labelValues({selector, label}, start, end, signal) {
    const parameters = selector ? {"match[]": selector, start, end} : {start, end};
    return this.get(`label/${label}/values`, parameters, signal);
  }

  // Seconds between scrapes, by the server's configuration; Grafana's default where it does not tell.
  async scrapeInterval(fallback = 15) {
    try {
      const {yaml} = await this.get("status/config", {});
      const match = /^\s*scrape_interval: (?:(\d+)m)?(?:(\d+)s)?$/m.exec(yaml);
      return match && (match[1] || match[2]) ? 60 * Number(match[1] ?? 0) + Number(match[2] ?? 0) : fallback;
    } catch {
      return fallback;
    }
  }
}

function toNumber(text) {
  const number = text === "+Inf" ? Infinity : text === "-Inf" ? -Infinity : Number(text);
  return Number.isNaN(number) ? null : number;
}
