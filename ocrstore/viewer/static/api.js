// Requests to the server: JSON, URLs of pictures, errors with a kind.

export class ApiError extends Error {
  constructor(kind, message, position) {
    super(message);
    this.kind = kind;
    this.position = position;
  }
}

const listeners = new Set();

// called with every error of a kind that concerns the whole page: "offline", "denied", "changed"
export function onTrouble(listener) {
  listeners.add(listener);
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: { accept: "application/json" } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw tell(new ApiError("offline", "The viewer does not answer. Was it stopped in the terminal?"));
  }
  if (response.status === 403) {
    throw tell(
      new ApiError("denied", "The viewer was restarted. Open the address that it printed last."),
    );
  }
  let answer;
  try {
    answer = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("store", `The viewer failed (${response.status}).`);
  }
  if (!response.ok) {
    const error = new ApiError(answer.kind, answer.error, answer.position);
    throw error.kind === "changed" ? tell(error) : error;
  }
  return answer;
}

function tell(error) {
  for (const listener of listeners) listener(error);
  return error;
}

export function get(path, parameters = {}, signal = undefined) {
  const query = new URLSearchParams(parameters).toString();
  return ask(query ? `${path}?${query}` : path, { signal });
}

export function post(path, parameters = []) {
  const query = new URLSearchParams(parameters).toString();
  return ask(query ? `${path}?${query}` : path, { method: "POST" });
}

// URLs contain the state of the store: after a change nothing old comes from the cache
export function thumbnail(state, row, side, outlines) {
  return `/thumbnail/${row}?side=${side}&outlines=${outlines ? 1 : 0}&state=${state}`;
}

export function picture({ state, row, beside }, column) {
  return `/picture/${row}?column=${encodeURIComponent(column)}&state=${state}${beside ? "&beside=1" : ""}`;
}

export const keysUrl = (parameters) => `/api/keys?${new URLSearchParams(parameters)}`;
