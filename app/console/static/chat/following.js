// Whoever is at the page's end follows what is written; who has scrolled away is left there, and told of the way back.

const NEAR = 60; // pixels from the end

export class Following {
  // The button `newest` leads back while `isWritten()`.
  /** @param {HTMLElement} view @param {HTMLElement} newest @param {() => boolean} isWritten */
  constructor(view, newest, isWritten) {
    this.view = view;
    this.newest = newest;
    this.isWritten = isWritten;
    this.isFollowing = false;
    newest.addEventListener("click", () => this.follow());
  }

  // More is written.
  grown() {
    if (this.isFollowing) this.follow();
    else this.look();
  }

  // Go to what is written, and stay there.
  follow() {
    this.isFollowing = true;
    if (!this.view.hidden) window.scrollTo(0, document.body.scrollHeight);
    this.look();
  }

  // Somebody has scrolled, or there is more or less to scroll through.
  look() {
    const { scrollHeight, scrollTop, clientHeight } = document.scrollingElement ?? document.documentElement;
    this.isFollowing = scrollHeight - scrollTop - clientHeight < NEAR;
    this.newest.hidden = this.isFollowing || !this.isWritten();
  }
}
