// One socket for all conversations, each in a lane of its own. A broken one is opened again, and
// the answers that it carried go on behind the last event that has come.

export const TERMINAL = ["response.completed", "response.incomplete", "response.failed"];
const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 8000;

export class Line {
  // `place` has an address and protocols; `told(isOpen, why)` is called when it opens or breaks.
  constructor(place, told) {
    this.place = place;
    this.told = told;
    this.answers = new Map(); // by lane: those that run
    this.tape = []; // every message as it went, to be looked at
    this.open();
  }

  open() {
    const socket = new WebSocket(this.place.address, this.place.protocols);
    socket.addEventListener("open", () => this.begin());
    socket.addEventListener("message", ({ data }) => this.hear(JSON.parse(data)));
    socket.addEventListener("close", ({ reason }) => this.lose(socket, reason));
    this.socket = socket;
  }

  get isOpen() { return this.socket.readyState === WebSocket.OPEN; }

  begin() {
    this.retry = FIRST_RETRY_MS;
    this.told(true, "");
    for (const [lane, { answer, request, isStopped }] of this.answers) {
      // What had not begun is asked again: nobody else can know of it.
      const again = answer.id === null ? request
        : { type: "response.resume", response_id: answer.id, starting_after: answer.last };
      this.say({ ...again, stream_id: lane });
      if (isStopped) this.stop(lane);
    }
  }

  lose(socket, reason) {
    if (socket !== this.socket) return;
    this.told(false, reason);
    this.retry = Math.min(LAST_RETRY_MS, 2 * (this.retry ?? FIRST_RETRY_MS));
    this.opening = setTimeout(() => this.open(), this.retry / 2);
  }

  // Ask for an answer in a lane that has none running; it hears events up to a terminal one.
  ask(lane, body, answer) {
    const request = { type: "response.create", ...body };
    this.answers.set(lane, { answer, request });
    if (this.isOpen) this.say({ ...request, stream_id: lane });
  }

  // While the line is broken, as soon as it is mended.
  stop(lane) {
    const running = this.answers.get(lane);
    if (running === undefined) return;
    if (this.isOpen) this.say({ type: "response.cancel", stream_id: lane });
    else running.isStopped = true;
  }

  // Break the socket as a bad network would: what it carried is resumed on the next one.
  cut() { this.socket.close(); }

  close() {
    const { socket } = this;
    this.socket = {};
    clearTimeout(this.opening);
    socket.close();
  }

  say(message) {
    this.tape.push(["client", message]);
    this.socket.send(JSON.stringify(message));
  }

  hear(event) {
    this.tape.push(["server", event]);
    const running = this.answers.get(event.stream_id);
    if (running === undefined) {
      if (event.type === "error") this.told(this.isOpen, event.error.message);
      return;
    }
    if (event.type === "error" || TERMINAL.includes(event.type)) this.answers.delete(event.stream_id);
    running.answer.take(event, performance.now());
  }
}
